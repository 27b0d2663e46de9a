package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

var converter = applyconfigurations.NewTypeConverter(scheme.Scheme)

// subject is an object that is edited.
type subject struct {
	name, kind string
	object     runtime.Object
	encodings  []string
	typed      func(runtime.Object) (*typed.TypedValue, error)
	// normal is an object as an API server would store it.
	normal func(raw []byte) (runtime.Object, error)
	decode func(raw []byte) (runtime.Object, error)
	encode func(object runtime.Object, encoding string) []byte
	// conditions are one value each only in lists of this form.
	unit *regexp.Regexp
}

// builtIn is the object of a fixture.
func builtIn(fixture fixture) subject {
	return subject{
		name:      fixture.name,
		kind:      fixture.object.GetObjectKind().GroupVersionKind().Kind,
		object:    fixture.object,
		encodings: []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf},
		typed:     typedOf,
		decode:    decode,
		encode:    encode,
		normal: func(raw []byte) (runtime.Object, error) {
			object, err := decode(raw)
			if err != nil {
				return nil, err
			}
			// Protobuf cannot tell an empty list from none, so no API server does.
			return decode(encode(object, runtime.ContentTypeProtobuf))
		},
		unit: unit,
	}
}

// question is edits of one object, each made apart from the others.
type question struct {
	subject  subject
	encoding string
	edits    []string
	base     *typed.TypedValue
	sides    []*typed.TypedValue
	changes  []*fieldpath.Set
	conflict bool
	excepted string
}

// exceptions are paths that eddy merges as one value or by a rule of its own, each learned from a control plane.
var exceptions = []struct{ kind, path, reason string }{
	{"", ".metadata.generation", "a counter: it never goes down"},
	{"", ".metadata.uid", "another uid is another object"},
	{"", ".metadata.managedFields", "merged by manager, where server-side apply computes it anew"},
	{"Lease", ".spec", "one unit: the fields of a claim belong together"},
	{"Pod", ".spec.nodeName", "set once; the status follows it"},
	{"PersistentVolumeClaim", ".spec.volumeName", "set once"},
	{"PersistentVolume", ".spec.claimRef", "set once"},
	{"Node", ".spec.podCIDR", "set once"},
	{"Node", ".spec.providerID", "set once"},
	{"VolumeAttachment", ".spec.source.inlineVolumeSpec.claimRef", "one value, as in a PersistentVolume"},
	{"Secret", ".type", "never changed: a Secret of another type is the last writer's"},
	{"CustomResourceDefinition", ".status.storedVersions", "a union: objects may be stored in each of them"},
	{"Job", ".status.succeeded", "counted pod by pod"},
	{"Job", ".status.failed", "counted pod by pod, or index by index"},
	{"Job", ".status.completedIndexes", "counted index by index"},
	{"Job", ".status.uncountedTerminatedPods", "counted pod by pod"},
}

// refused are pairs of paths that eddy does not always let both sides change: an API server would refuse what comes of it, or
// delete the object. See docs/merging.md.
var refused = []struct{ kind, one, other, reason string }{
	{"", `\.metadata\.finalizers`, `\.metadata\.deletion`, "deleted, and nothing left to finish"},
	{"Namespace", `\.spec\.finalizers`, `\.metadata\.(deletion|finalizers)`, "deleted, and nothing left to finish"},
	{"Ingress", `\.spec\.(backend|defaultBackend)`, `\.spec\.rules`, "neither rules nor a backend"},
	{"HorizontalPodAutoscaler", `\.spec\.minReplicas`, `\.spec\.maxReplicas`, "fewer at most than at least"},
	{"Deployment", `\.spec\.minReadySeconds`, `\.spec\.progressDeadlineSeconds`, "a deadline before a pod can be ready"},
	{"ResourceQuota", `\.spec\.scope`, `\.spec\.(hard|scope)`, "scopes that exclude each other, or what is counted"},
	{"Service", `\.spec\.ports`, `\.spec\.(ports|type)`, "ports that exclude each other, or are none of nodes"},
	{"", `.*\.resources\.requests`, `.*\.resources\.limits`, "more requested than the limit"},
	{"", `.*\.volumes`, `.*\.volume(Mounts|Devices)`, "a mount without its volume"},
	{"", `.*\.([a-z]+C|c)ontainers`, `.*\.([a-z]+C|c)ontainers`, "two containers, or ports of one, of one name"},
	{"", `.*\.hostNetwork`, `.*\.ports`, "a port that is not the node's in its network"},
	{"", `\.metadata\.ownerReferences`, `\.metadata\.ownerReferences`, "two controllers"},
}

// refusedTogether tells why what both sides changed may not be right together; "" where nothing speaks against it.
func refusedTogether(kind string, changes []*fieldpath.Set) string {
	touches := func(side int, pattern string) (found bool) {
		match := regexp.MustCompile("^" + pattern)
		changes[side].Iterate(func(path fieldpath.Path) { found = found || match.MatchString(path.String()) })
		return found
	}
	for _, row := range refused {
		if row.kind != "" && row.kind != kind {
			continue
		}
		if touches(0, row.one) && touches(1, row.other) || touches(1, row.one) && touches(0, row.other) {
			return row.reason
		}
	}
	return ""
}

// edits asks about so many edits made apart, of each object so often.
func edits(subjects []subject, definitions [][]byte, apart, times int, random *rand.Rand) (failed int) {
	var questions []question
	var lines [][][]byte
	for _, of := range subjects {
		base := richer(of, random)
		if base == nil {
			// Not known to server-side apply: nothing says what edits mean together.
			continue
		}
		baseTyped, err := of.typed(base)
		if err != nil {
			continue
		}
		for n := 0; n < times; n++ {
			q := question{subject: of, base: baseTyped}
			var sides []runtime.Object
			for range apart {
				var side runtime.Object
				var said string
				for tries := 0; side == nil && tries < 50; tries++ {
					side, said = edited(of, base, baseTyped, random)
				}
				if side == nil {
					fatal(fmt.Errorf("no edit of %s can be made", of.name))
				}
				value, err := of.typed(side)
				if err != nil {
					fatal(err)
				}
				sides, q.edits = append(sides, side), append(q.edits, said)
				q.sides, q.changes = append(q.sides, value), append(q.changes, changed(q.base, value))
			}
			q.judge()
			for _, encoding := range of.encodings {
				q.encoding = encoding
				questions = append(questions, q)
				values := [][]byte{of.encode(base, encoding)}
				for _, side := range sides {
					values = append(values, of.encode(side, encoding))
				}
				lines = append(lines, values)
			}
		}
	}
	what := map[int]string{2: "pairs", 3: "triples"}[apart]
	var order []string
	reports := map[string]*report{}
	for at, answer := range ask(definitions, lines) {
		q := questions[at]
		if reports[q.encoding] == nil {
			order = append(order, q.encoding)
			reports[q.encoding] = &report{what: what + " of edits that do not conflict, " + q.encoding}
			reports[q.encoding+"!"] = &report{what: what + " of edits that conflict, " + q.encoding}
		}
		check(q, answer[0], reports[q.encoding], reports[q.encoding+"!"])
	}
	for _, encoding := range order {
		failed += reports[encoding].print() + reports[encoding+"!"].print()
	}
	return failed
}

// judge says whether the edits conflict, or are excepted.
func (q *question) judge() {
	kind := q.subject.kind
	for one := range q.sides {
		for other := range one {
			both := []*fieldpath.Set{q.changes[one], q.changes[other]}
			q.conflict = q.conflict || q.subject.sameUnit(both) || overlap(both[0], both[1]) || inRemoved(*q, one, other) || inRemoved(*q, other, one)
			if reason := refusedTogether(kind, both); reason != "" {
				q.excepted = reason
			}
		}
	}
	deleted := isBeingDeleted(q.base)
	for _, exception := range exceptions {
		for _, change := range q.changes {
			change.Iterate(func(path fieldpath.Path) {
				if deleted && strings.HasPrefix(path.String(), ".metadata.finalizers") {
					q.excepted = "its deletion is finished"
				}
				if (exception.kind == "" || exception.kind == kind) && strings.HasPrefix(path.String(), exception.path) {
					q.excepted = exception.reason
				}
			})
		}
	}
}

// isBeingDeleted says whether an object goes once it has no finalizers any more.
func isBeingDeleted(object *typed.TypedValue) bool {
	whole := object.AsValue()
	if !whole.IsMap() {
		return false
	}
	metadata, there := whole.AsMap().Get("metadata")
	return there && metadata.IsMap() && metadata.AsMap().Has("deletionTimestamp")
}

// check holds a merge against what the library says.
func check(q question, answer []byte, apart, conflicts *report) {
	report := apart
	if q.conflict {
		report = conflicts
	}
	said := fmt.Sprintf("%s, %s: %s:", q.subject.name, q.encoding, strings.Join(q.edits, " | "))
	if len(answer) == 0 && q.excepted != "" {
		report.excepted++
		return
	}
	object, err := q.subject.decode(answer)
	if err != nil {
		report.fail("%s the merge cannot be read: %v", said, err)
		return
	}
	merged, err := q.subject.typed(object)
	if err != nil {
		report.fail("%s the merge does not fit its schema: %v", said, err)
		return
	}
	if q.conflict {
		// Every leaf is as it was in one of them.
		all := &fieldpath.Set{}
		for _, changes := range q.changes {
			all = all.Union(changes)
		}
		strange := changed(q.base, merged).Difference(all)
		if !strange.Empty() && q.excepted == "" {
			report.fail("%s nobody changed %s", said, strange)
			return
		}
		report.passed++
		return
	}
	for side := range q.sides {
		got, want := changed(q.sides[side], merged), &fieldpath.Set{}
		for other, changes := range q.changes {
			if other != side {
				want = want.Union(changes)
			}
		}
		got = got.Difference(emptied(got.Difference(want), want))
		if !got.Equals(want) {
			if q.excepted != "" {
				report.excepted++
				return
			}
			report.fail("%s beside edit %d the merge changes %s, and the others changed %s; amiss %s and %s", said, side+1, got, want,
				want.Difference(got), got.Difference(want))
			return
		}
	}
	report.passed++
}

// emptied are the paths of what is gone only because all that lay in it is: an empty map says as much as none.
func emptied(amiss, want *fieldpath.Set) *fieldpath.Set {
	found := &fieldpath.Set{}
	amiss.Iterate(func(path fieldpath.Path) {
		want.Iterate(func(inner fieldpath.Path) {
			if len(inner) > len(path) && path.Equals(inner[:len(path)]) {
				found.Insert(path.Copy())
			}
		})
	})
	return found
}

func typedOf(object runtime.Object) (*typed.TypedValue, error) {
	return converter.ObjectToTyped(object, typed.AllowDuplicates)
}

// changed are the paths in which two values differ.
func changed(from, to *typed.TypedValue) *fieldpath.Set {
	comparison, err := from.Compare(to)
	if err != nil {
		fatal(err)
	}
	return comparison.Added.Union(comparison.Modified).Union(comparison.Removed)
}

// unit is what eddy takes whole from one side, although server-side apply does not: its parts are only right together.
var unit = regexp.MustCompile(`^.*?(\.conditions\[[^]]*\]|\.env\[[^]]*\]|\.volumes\[[^]]*\]|\.spec\.strategy|\.spec\.updateStrategy)`)

// together are fields of one struct that eddy takes from one side, as tools/schema/write/together.go says.
var together = []struct{ kind, in, fields string }{
	{"", `.*\.metadata`, "deletionGracePeriodSeconds|deletionTimestamp"},
	{"Pod", `\.status`, "hostIPs?|podIPs?"},
	{"Job", `\.status`, "active|completedIndexes|failed|failedIndexes|ready|succeeded|terminating|uncountedTerminatedPods"},
	{"Deployment", `\.status`, "observedGeneration|[a-z]*[rR]eplicas"},
	{"ReplicaSet", `\.status`, "observedGeneration|[a-zL]*[rR]eplicas"},
	{"ReplicationController", `\.status`, "observedGeneration|[a-zL]*[rR]eplicas"},
	{"StatefulSet", `\.status`, "observedGeneration|[a-z]*[rR]eplicas|(current|update)Revision"},
	{"DaemonSet", `\.status`, "observedGeneration|[a-zA-Z]*(Scheduled|Ready|Available|Unavailable)"},
	{"PodDisruptionBudget", `\.status`, "currentHealthy|desiredHealthy|disruptionsAllowed|expectedPods|observedGeneration"},
	{"HorizontalPodAutoscaler", `\.status`, "currentReplicas|desiredReplicas|lastScaleTime|observedGeneration"},
	{"Service", `\.spec`, "allocateLoadBalancerNodePorts|clusterIPs?|externalName|externalTrafficPolicy|healthCheckNodePort|ipFamilies|ipFamilyPolicy|loadBalancerClass|type"},
	{"Service", `\.spec`, "sessionAffinity|sessionAffinityConfig"},
	{"", `.*\.(seccompProfile|appArmorProfile)`, "localhostProfile|type"},
	{"", `.*\.(livenessProbe|readinessProbe|startupProbe)`, "exec|grpc|httpGet|tcpSocket"},
	{"", `.*\.(postStart|preStop)`, "exec|httpGet|sleep|tcpSocket"},
	{"PodDisruptionBudget", `\.spec`, "maxUnavailable|minAvailable"},
	{"", `.*\.clientConfig`, "service|url"},
	{"Ingress", `\.spec\.(defaultBackend|backend)`, "resource|service|serviceName|servicePort"},
}

var togetherPaths = func() (all []*regexp.Regexp) {
	for _, row := range together {
		all = append(all, regexp.MustCompile("^("+row.in+`)\.(`+row.fields+`)($|[.\[])`))
	}
	return all
}()

// unitOf names the unit in which a path lies; "" where it is in none.
func (s subject) unitOf(path string) string {
	kind := s.kind
	if name := s.unit.FindString(path); name != "" {
		return name
	}
	for at, row := range together {
		if match := togetherPaths[at].FindStringSubmatch(path); match != nil && (row.kind == "" || row.kind == kind) {
			return fmt.Sprintf("%s %d", match[1], at)
		}
	}
	return ""
}

// sameUnit tells whether both sides changed parts of one unit.
func (s subject) sameUnit(changes []*fieldpath.Set) (found bool) {
	touched := map[string]bool{}
	changes[0].Iterate(func(path fieldpath.Path) {
		if name := s.unitOf(path.String()); name != "" {
			touched[name] = true
		}
	})
	changes[1].Iterate(func(path fieldpath.Path) { found = found || touched[s.unitOf(path.String())] })
	return found
}

// overlap tells whether a path of one set is, or lies in, one of the other.
func overlap(a, b *fieldpath.Set) (found bool) {
	a.Iterate(func(one fieldpath.Path) {
		b.Iterate(func(other fieldpath.Path) {
			n := min(len(one), len(other))
			found = found || one[:n].Equals(other[:n])
		})
	})
	return found
}

// inRemoved tells whether the other side changed something in a struct, map or element that this side removed whole.
func inRemoved(q question, side, other int) (found bool) {
	removed := gone(q.base.AsValue().Unstructured(), q.sides[side].AsValue().Unstructured(), nil)
	q.changes[other].Iterate(func(path fieldpath.Path) {
		for _, prefix := range removed {
			fits := len(path) >= len(prefix)
			for at := 0; fits && at < len(prefix); at++ {
				fits = path[at].FieldName != nil && *path[at].FieldName == prefix[at]
			}
			found = found || fits
		}
	})
	return found
}

// gone are the maps, by the names of the fields that lead to them, that are in one value and not in the other.
func gone(before, after any, way []string) (all [][]string) {
	from, ok := before.(map[string]any)
	if !ok {
		return nil
	}
	to, _ := after.(map[string]any)
	for name, value := range from {
		here := append(append([]string{}, way...), name)
		if _, isMap := value.(map[string]any); !isMap {
			continue
		}
		if _, stays := to[name]; !stays {
			all = append(all, here)
		} else {
			all = append(all, gone(value, to[name], here)...)
		}
	}
	return all
}

// richer is the object with more elements in its lists; nil where server-side apply does not know it.
func richer(of subject, random *rand.Rand) runtime.Object {
	object := of.object
	base, err := of.typed(object)
	if err != nil {
		return nil
	}
	for range 12 {
		if grown, said := edited(of, object, base, random); grown != nil && strings.HasPrefix(said, "add") {
			if typed, err := of.typed(grown); err == nil {
				object, base = grown, typed
			}
		}
	}
	return object
}

// place is where an edit can be made.
type place struct {
	said string
	edit func()
}

// edited is an object with one random edit, and what that was; nil when the edit came to nothing.
func edited(of subject, object runtime.Object, value *typed.TypedValue, random *rand.Rand) (runtime.Object, string) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		fatal(err)
	}
	// An object that is unstructured shares its content.
	content = runtime.DeepCopyJSON(content)
	atom, ok := value.Schema().Resolve(value.TypeRef())
	if !ok {
		fatal(fmt.Errorf("%v does not resolve", value.TypeRef()))
	}
	walk := &walk{schema: value.Schema(), random: random}
	walk.mapping(content, atom.Map, "")
	chosen := walk.places[random.Intn(len(walk.places))]
	chosen.edit()
	raw, err := json.Marshal(&unstructured.Unstructured{Object: content})
	if err != nil {
		return nil, ""
	}
	after, err := of.normal(raw)
	if err != nil {
		return nil, ""
	}
	typed, err := of.typed(after)
	if err != nil || changed(value, typed).Empty() {
		return nil, ""
	}
	return after, chosen.said
}

// walk finds the places.
type walk struct {
	schema *smd.Schema
	random *rand.Rand
	places []place
}

func (w *walk) add(said string, edit func()) { w.places = append(w.places, place{said, edit}) }

func (w *walk) mapping(content map[string]any, of *smd.Map, way string) {
	for _, name := range slices.Sorted(maps.Keys(content)) {
		value := content[name]
		if way == "" && (name == "apiVersion" || name == "kind") {
			continue
		}
		ref := of.ElementType
		if field, ok := of.FindField(name); ok {
			ref = field.Type
		}
		here := way + "." + name
		w.add("remove "+here, func() { delete(content, name) })
		// Names of fields that can be null begin so in the definitions.
		if strings.HasPrefix(name, "maybe") && value != nil {
			w.add("nullify "+here, func() { content[name] = nil })
		}
		w.value(value, func(changed any) { content[name] = changed }, ref, here)
	}
	if len(of.Fields) == 0 && len(content) > 0 && of.ElementRelationship != smd.Atomic {
		w.add("add to "+way, func() {
			for _, name := range slices.Sorted(maps.Keys(content))[:1] {
				content[fmt.Sprintf("key-%d", w.random.Intn(4))] = w.other(content[name])
			}
		})
	}
}

func (w *walk) value(value any, set func(any), ref smd.TypeRef, here string) {
	atom, _ := w.schema.Resolve(ref)
	switch value := value.(type) {
	case map[string]any:
		if atom.Map != nil {
			w.mapping(value, atom.Map, here)
		}
	case []any:
		if atom.List == nil || len(value) == 0 {
			return
		}
		w.add("remove an element of "+here, func() {
			at := w.random.Intn(len(value))
			set(append(append([]any{}, value[:at]...), value[at+1:]...))
		})
		w.add("add to "+here, func() { set(append(append([]any{}, value...), w.element(value[0], atom.List))) })
		for at := range value {
			w.value(value[at], func(changed any) { value[at] = changed }, atom.List.ElementType, fmt.Sprintf("%s[%d]", here, at))
		}
	case nil:
		w.add("fill "+here, func() { set("filled") })
	default:
		w.add("change "+here, func() { set(w.other(value)) })
	}
}

// element is another one for a list, with other keys.
func (w *walk) element(like any, list *smd.List) any {
	fields, ok := like.(map[string]any)
	if !ok {
		return w.other(like)
	}
	copied := map[string]any{}
	for name, value := range fields {
		copied[name] = value
	}
	for _, key := range list.Keys {
		if value, ok := copied[key]; ok {
			copied[key] = w.other(value)
		}
	}
	return runtime.DeepCopyJSON(copied)
}

// other is another value of the same form.
func (w *walk) other(value any) any {
	n := w.random.Intn(6)
	switch value := value.(type) {
	case bool:
		return !value
	case int64:
		return int64(100 + n)
	case float64:
		return float64(100 + n)
	case string:
		switch {
		case len(value) == 20 && strings.HasSuffix(value, "Z"):
			return fmt.Sprintf("2026-01-0%dT00:00:00Z", n+1)
		case len(value) == 27 && strings.HasSuffix(value, "Z"):
			return fmt.Sprintf("2026-01-0%dT00:00:00.00000%dZ", n+1, n)
		case value == "0" || strings.HasPrefix(value, "q"):
			return fmt.Sprint(7 + n)
		case isBase64(value):
			return []string{"AQ==", "Ag==", "Aw==", "BA==", "BQ==", "Bg=="}[n]
		}
		return fmt.Sprintf("other-%d", n)
	case map[string]any:
		copied := runtime.DeepCopyJSON(value)
		for _, name := range slices.Sorted(maps.Keys(copied))[:min(1, len(copied))] {
			copied[name] = w.other(copied[name])
		}
		return copied
	case []any, nil:
		return value
	}
	panic(fmt.Sprintf("a value of type %s", reflect.TypeOf(value)))
}

func isBase64(text string) bool { return strings.HasSuffix(text, "==") && len(text) == 4 }
