// Command schema writes down what Kubernetes declares about the fields of its built-in kinds, as one text that eddy reads:
// names and protobuf numbers from the Go types, list and map types from the schema of server-side apply.
//
//	cd tools/schema && go run ./write > ../../crates/crdt/src/merge/object/schema/kubernetes.schema
//
// The format is described in crates/crdt/src/merge/object/schema/catalogue.rs.
package main

import (
	"bufio"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"sort"
	"strconv"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

func main() {
	writer := &writer{types: map[reflect.Type]string{}, declared: declarations()}
	kinds := writer.declared.only(kinds())
	for _, kind := range kinds {
		writer.visit(kind.goType)
	}
	if err := writer.print(kinds); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// kind is one kind in one API version, and the Go type that holds it.
type kind struct {
	gvk    schema.GroupVersionKind
	goType reflect.Type
}

// kinds are all that an API server stores: what has metadata of an object and is no list.
func kinds() []kind {
	known := scheme.Scheme.AllKnownTypes()
	for _, object := range []any{&apiextensions.CustomResourceDefinition{}} {
		known[apiextensions.SchemeGroupVersion.WithKind("CustomResourceDefinition")] = reflect.TypeOf(object).Elem()
	}
	known[apiregistration.SchemeGroupVersion.WithKind("APIService")] = reflect.TypeOf(apiregistration.APIService{})
	var kinds []kind
	for gvk, goType := range known {
		if _, stored := goType.FieldByName("ObjectMeta"); stored && gvk.Version != "__internal" {
			kinds = append(kinds, kind{gvk, goType})
		}
	}
	sort.Slice(kinds, func(i, j int) bool {
		a, b := kinds[i].gvk, kinds[j].gvk
		return a.GroupVersion().String()+" "+a.Kind < b.GroupVersion().String()+" "+b.Kind
	})
	return kinds
}

// writer collects the struct types that kinds reach.
type writer struct {
	types    map[reflect.Type]string
	declared *declared
	order    []reflect.Type
}

// unit tells of a struct whose fields are only right together: it comes whole from one side, the one that edited any of it last. In
// server-side apply its fields are apart.
func unit(goType reflect.Type) string {
	name := goType.Name()
	parts := strings.Split(goType.PkgPath(), "/")
	switch group := parts[len(parts)-2]; {
	case strings.HasSuffix(name, "Condition") && name != "MatchCondition",
		// A value, or where it is from; a source of one kind or another; a strategy, and what it takes.
		group == "core" && (name == "EnvVar" || name == "Volume"),
		(group == "apps" || group == "extensions") && (strings.HasSuffix(name, "UpdateStrategy") || name == "DeploymentStrategy"):
		return " unit"
	}
	return ""
}

// visit notes a struct type and all that it reaches.
func (w *writer) visit(goType reflect.Type) {
	switch goType.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		w.visit(goType.Elem())
		return
	case reflect.Struct:
	default:
		return
	}
	if _, special := special(goType); special || w.types[goType] != "" {
		return
	}
	w.types[goType] = typeName(goType)
	w.order = append(w.order, goType)
	for _, field := range fields(goType) {
		if field.json == "" {
			w.declared.inlined[field.goType] = goType
		}
		w.visit(field.goType)
	}
}

// typeName is a short name for a Go type: the last two parts of its package and its own name.
func typeName(goType reflect.Type) string {
	parts := strings.Split(goType.PkgPath(), "/")
	return strings.Join(parts[len(parts)-2:], "/") + "." + goType.Name()
}

// field is one field of a struct as it is written in JSON and in protobuf.
type field struct {
	// json is empty for a struct whose fields JSON writes into the one around it.
	json string
	// number is 0 where protobuf has no such field.
	number int
	goType reflect.Type
	// mergeKey is the one of strategic merge patches.
	mergeKey string
}

func fields(goType reflect.Type) []field {
	var all []field
	for i := range goType.NumField() {
		f := goType.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" || (f.Anonymous && f.Type.Name() == "TypeMeta") {
			continue
		}
		number := 0
		if tag := f.Tag.Get("protobuf"); tag != "" && tag != "-" {
			var err error
			if number, err = strconv.Atoi(strings.Split(tag, ",")[1]); err != nil {
				panic(fmt.Sprintf("%s.%s: %v", goType, f.Name, err))
			}
		}
		if name == "" && !strings.Contains(options, "inline") {
			panic(fmt.Sprintf("%s.%s has no name in JSON", goType, f.Name))
		}
		all = append(all, field{name, number, f.Type, f.Tag.Get("patchMergeKey")})
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].number < all[j].number })
	return all
}

// special are the types whose form in JSON is not that of their Go type.
func special(goType reflect.Type) (string, bool) {
	name, known := map[string]string{
		"k8s.io/apimachinery/pkg/apis/meta/v1.Time":                                             "time",
		"k8s.io/apimachinery/pkg/apis/meta/v1.MicroTime":                                        "microtime",
		"k8s.io/apimachinery/pkg/apis/meta/v1.Duration":                                         "duration",
		"k8s.io/apimachinery/pkg/apis/meta/v1.FieldsV1":                                         "fields",
		"k8s.io/apimachinery/pkg/api/resource.Quantity":                                         "quantity",
		"k8s.io/apimachinery/pkg/util/intstr.IntOrString":                                       "int-or-string",
		"k8s.io/apimachinery/pkg/runtime.RawExtension":                                          "raw",
		"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSON":                         "json",
		"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSONSchemaPropsOrBool":        "schema-or-bool",
		"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSONSchemaPropsOrArray":       "schema-or-list",
		"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSONSchemaPropsOrStringArray": "schema-or-strings",
	}[goType.PkgPath()+"."+goType.Name()]
	return name, known
}

// written is the name of a type in the text. A list of strings that has a message of its own is "strings".
func (w *writer) written(goType reflect.Type) string {
	if name, known := special(goType); known {
		return name
	}
	switch goType.Kind() {
	case reflect.Pointer:
		return "?" + w.written(goType.Elem())
	case reflect.Slice:
		if goType.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		if goType.Name() != "" && goType.Elem().Kind() == reflect.String {
			return "strings"
		}
		return "[]" + w.written(goType.Elem())
	case reflect.Map:
		return "{}" + w.written(goType.Elem())
	case reflect.Struct:
		return w.types[goType]
	case reflect.String, reflect.Bool, reflect.Int32, reflect.Int64, reflect.Float64:
		return goType.Kind().String()
	}
	panic("a type that is not known: " + goType.String())
}

func (w *writer) print(kinds []kind) error {
	out := bufio.NewWriter(os.Stdout)
	fmt.Fprintf(out, "# Written by tools/schema from the API modules of Kubernetes. Do not edit.\n")
	fmt.Fprintf(out, "version %s\n", version("k8s.io/api"))
	for _, kind := range kinds {
		fmt.Fprintf(out, "kind %s %s %s\n", kind.gvk.GroupVersion(), kind.gvk.Kind, w.types[kind.goType])
	}
	sort.Slice(w.order, func(i, j int) bool { return w.types[w.order[i]] < w.types[w.order[j]] })
	for at, goType := range w.order {
		if at > 0 && w.types[w.order[at-1]] == w.types[goType] {
			return fmt.Errorf("two types have the name %s", w.types[goType])
		}
		fmt.Fprintf(out, "type %s%s\n", w.types[goType], max(w.declared.ofType(goType), unit(goType)))
		for _, field := range fields(goType) {
			name := field.json
			if name == "" {
				name = "-"
			}
			fmt.Fprintf(out, "%d %s %s%s\n", field.number, name, w.written(field.goType), w.declared.ofField(goType, field))
		}
		for _, line := range ofTogether(goType) {
			fmt.Fprintln(out, line)
		}
	}
	for at := range unused {
		return fmt.Errorf("no type is %s with %s", together[at].goType, together[at].fields)
	}
	return out.Flush()
}

// version is that of a module in this program.
func version(module string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == module {
				return dep.Version
			}
		}
	}
	return "unknown"
}
