package main

import (
	"fmt"
	"os"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	apply "k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistration "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
)

// declared is what server-side apply is told about types and fields. The two kinds that client-go does not know have it in their
// OpenAPI definitions.
type declared struct {
	apply   *smd.Schema
	openapi map[string]common.OpenAPIDefinition
	// inlined are the structs whose fields JSON writes into another one, which then declares them.
	inlined map[reflect.Type]reflect.Type
}

func declarations() *declared {
	// Any object leads to the schema of all.
	pod := &corev1.Pod{}
	pod.APIVersion, pod.Kind = "v1", "Pod"
	typed, err := apply.NewTypeConverter(scheme.Scheme).ObjectToTyped(pod)
	if err != nil {
		panic(err)
	}
	definitions := map[string]common.OpenAPIDefinition{}
	reference := func(path string) spec.Ref { return spec.MustCreateRef(path) }
	for _, all := range []map[string]common.OpenAPIDefinition{
		apiextensions.GetOpenAPIDefinitions(reference), apiregistration.GetOpenAPIDefinitions(reference),
	} {
		for name, definition := range all {
			definitions[name] = definition
		}
	}
	return &declared{typed.Schema(), definitions, map[reflect.Type]reflect.Type{}}
}

func (d *declared) ofApply(goType reflect.Type) *smd.Map {
	name := goType.PkgPath() + "." + goType.Name()
	name = "io.k8s." + strings.ReplaceAll(strings.TrimPrefix(name, "k8s.io/"), "/", ".")
	if def, ok := d.apply.FindNamedType(name); ok {
		return def.Map
	}
	if around, ok := d.inlined[goType]; ok {
		return d.ofApply(around)
	}
	return nil
}

func (d *declared) ofOpenAPI(goType reflect.Type) *spec.Schema {
	path := goType.PkgPath() + "." + goType.Name()
	dotted := "io.k8s." + strings.ReplaceAll(strings.TrimPrefix(path, "k8s.io/"), "/", ".")
	for _, name := range []string{path, dotted} {
		if definition, ok := d.openapi[name]; ok {
			return &definition.Schema
		}
	}
	if around, ok := d.inlined[goType]; ok {
		return d.ofOpenAPI(around)
	}
	return nil
}

// only leaves out the kinds that nobody can apply: they are asked and answered, and never stored. One that is stored and not
// applied has no lists or maps of its own.
func (d *declared) only(kinds []kind) []kind {
	var stored []kind
	for _, kind := range kinds {
		name := kind.goType.Name()
		if d.ofApply(kind.goType) != nil || d.ofOpenAPI(kind.goType) != nil || name == "RangeAllocation" {
			stored = append(stored, kind)
		} else {
			fmt.Fprintln(os.Stderr, "not stored:", kind.gvk.GroupVersion(), kind.gvk.Kind)
		}
	}
	return stored
}

// ofType tells of a struct that is one value wherever it stands.
func (d *declared) ofType(goType reflect.Type) string {
	if known := d.ofApply(goType); known != nil {
		if known.ElementRelationship == smd.Atomic {
			return " atomic"
		}
		return ""
	}
	known := d.ofOpenAPI(goType)
	if known == nil && goType.Name() == "RangeAllocation" {
		return ""
	}
	if known == nil {
		// It would be merged by guessing.
		panic("nothing is declared about " + goType.String())
	}
	if kind, _ := known.Extensions.GetString("x-kubernetes-map-type"); kind == "atomic" {
		return " atomic"
	}
	return ""
}

// ofField tells how the parts of a field merge, where that is not what its type says.
func (d *declared) ofField(goType reflect.Type, of field) string {
	json := of.json
	if json == "conditions" && of.mergeKey != "" {
		// Those of a Job are one value to server-side apply. Controllers write them one by one.
		return " keys=" + of.mergeKey
	}
	if json == "" {
		return ""
	}
	if known := d.ofApply(goType); known != nil {
		field, ok := known.FindField(json)
		if !ok {
			// A type that is one value says nothing about its fields.
			return ""
		}
		return d.ofRef(field.Type)
	}
	known := d.ofOpenAPI(goType)
	if known == nil {
		return ""
	}
	property, ok := known.Properties[json]
	if !ok {
		panic(fmt.Sprintf("nothing is declared about %s of %s", json, goType))
	}
	if kind, ok := property.Extensions.GetString("x-kubernetes-map-type"); ok && kind == "atomic" {
		return " atomic"
	}
	switch kind, _ := property.Extensions.GetString("x-kubernetes-list-type"); kind {
	case "set":
		return " set"
	case "map":
		keys, _ := property.Extensions.GetStringSlice("x-kubernetes-list-map-keys")
		return " keys=" + strings.Join(keys, ",")
	}
	return ""
}

func (d *declared) ofRef(ref smd.TypeRef) string {
	atom, ok := d.apply.Resolve(ref)
	if !ok {
		panic(fmt.Sprintf("%v does not resolve", ref))
	}
	switch {
	case atom.List != nil && atom.List.ElementRelationship == smd.Associative:
		if len(atom.List.Keys) == 0 {
			return " set"
		}
		var keys []string
		element, _ := d.apply.Resolve(atom.List.ElementType)
		for _, key := range atom.List.Keys {
			if field, ok := element.Map.FindField(key); ok && field.Default != nil {
				if text := fmt.Sprint(field.Default); text != "" && text != "0" {
					key += ":" + text
				}
			}
			keys = append(keys, key)
		}
		return " keys=" + strings.Join(keys, ",")
	case atom.List == nil && atom.Map != nil && atom.Map.ElementRelationship == smd.Atomic && ref.NamedType == nil:
		return " atomic"
	case ref.ElementRelationship != nil && *ref.ElementRelationship == smd.Atomic && atom.List == nil:
		return " atomic"
	}
	return ""
}
