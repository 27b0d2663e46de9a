package main

import (
	"bufio"
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"

	core "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kube-openapi/pkg/schemaconv"
	"k8s.io/kube-openapi/pkg/validation/spec"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	sigsyaml "sigs.k8s.io/yaml"
)

//go:embed crds/*.yaml
var crds embed.FS

const objectMeta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"

// oneCondition is what eddy takes whole from one side in a custom resource: an element of conditions that are told apart by type.
var oneCondition = regexp.MustCompile(`^.*?\.conditions\[type="[^"]*"\]`)

// customs are an object of each definition, and the definitions as API servers store them.
func customs() (subjects []subject, definitions [][]byte) {
	files, err := crds.ReadDir("crds")
	if err != nil {
		fatal(err)
	}
	for _, file := range files {
		text, err := crds.ReadFile("crds/" + file.Name())
		if err != nil {
			fatal(err)
		}
		var definition apiextensionsv1.CustomResourceDefinition
		reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
		for at := 0; ; at++ {
			document, err := reader.Read()
			if err == io.EOF {
				break
			} else if err != nil {
				fatal(err)
			}
			if at == 0 {
				if err := sigsyaml.UnmarshalStrict(document, &definition); err != nil {
					fatal(fmt.Errorf("%s: %w", file.Name(), err))
				}
				definition.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
				definitions = append(definitions, encode(&definition, runtime.ContentTypeJSON))
				continue
			}
			raw, err := sigsyaml.YAMLToJSON(document)
			if err != nil {
				fatal(err)
			}
			subjects = append(subjects, custom(&definition, raw))
		}
	}
	return subjects, definitions
}

// custom is an object of a kind that is defined so.
func custom(definition *apiextensionsv1.CustomResourceDefinition, raw []byte) subject {
	object, err := normalCustom(raw)
	if err != nil {
		fatal(err)
	}
	kind := object.GetObjectKind().GroupVersionKind()
	of := parser(definition, kind.Version)
	if _, err := of.FromUnstructured(object.(*unstructured.Unstructured).Object); err != nil {
		fatal(fmt.Errorf("%s: %w", definition.Name, err))
	}
	return subject{
		name:      definition.Name,
		kind:      kind.Kind,
		object:    object,
		encodings: []string{runtime.ContentTypeJSON},
		decode:    readCustom,
		normal:    normalCustom,
		encode: func(object runtime.Object, _ string) []byte {
			raw, err := object.(*unstructured.Unstructured).MarshalJSON()
			if err != nil {
				fatal(err)
			}
			return raw
		},
		typed: func(object runtime.Object) (*typed.TypedValue, error) {
			return of.FromUnstructured(object.(*unstructured.Unstructured).Object, typed.AllowDuplicates)
		},
		unit: oneCondition,
	}
}

func readCustom(raw []byte) (runtime.Object, error) {
	object := &unstructured.Unstructured{}
	return object, object.UnmarshalJSON(raw)
}

// normalCustom reads an object as API servers do: of its metadata only what they know is left.
func normalCustom(raw []byte) (runtime.Object, error) {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(raw); err != nil {
		return nil, err
	}
	content, ok := object.Object["metadata"].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("no metadata")
	}
	var known meta.ObjectMeta
	written, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	strict := json.NewDecoder(bytes.NewReader(written))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&known); err != nil {
		return nil, err
	}
	for _, owner := range known.OwnerReferences {
		if owner.APIVersion == "" || owner.Kind == "" || owner.Name == "" || owner.UID == "" {
			return nil, fmt.Errorf("no owner")
		}
	}
	if written, err = json.Marshal(&known); err != nil {
		return nil, err
	}
	content = map[string]any{}
	if err := utiljson.Unmarshal(written, &content); err != nil {
		return nil, err
	}
	for name, value := range content {
		if value == nil {
			delete(content, name)
		}
	}
	object.Object["metadata"] = content
	return object, nil
}

// parser types objects as server-side apply does by a definition.
func parser(definition *apiextensionsv1.CustomResourceDefinition, version string) typed.ParseableType {
	for _, one := range definition.Spec.Versions {
		if one.Name != version {
			continue
		}
		var internal apiextensions.JSONSchemaProps
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(one.Schema.OpenAPIV3Schema, &internal, nil); err != nil {
			fatal(err)
		}
		schema, err := structural.NewStructural(&internal)
		if err != nil {
			fatal(err)
		}
		if errs := structural.ValidateStructural(nil, schema); len(errs) > 0 {
			fatal(fmt.Errorf("%s: %w", definition.Name, errs.ToAggregate()))
		}
		open := schema.ToKubeOpenAPI()
		withMetadata(open)
		converted, err := schemaconv.ToSchemaFromOpenAPI(map[string]*spec.Schema{"custom": open}, false)
		if err != nil {
			fatal(err)
		}
		// The types of metadata are those of built-in kinds.
		pod, err := typedOf(&core.Pod{TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "Pod"}})
		if err != nil {
			fatal(err)
		}
		types := map[string]smd.TypeDef{}
		for _, known := range append(pod.Schema().Types, converted.Types...) {
			types[known.Name] = known
		}
		all := &smd.Schema{Types: slices.Collect(maps.Values(types))}
		name := "custom"
		parseable := typed.ParseableType{Schema: all}
		parseable.TypeRef.NamedType = &name
		return parseable
	}
	fatal(fmt.Errorf("%s has no version %s", definition.Name, version))
	return typed.ParseableType{}
}

// withMetadata gives an object, and those in it, the metadata that all have.
func withMetadata(root *spec.Schema) {
	var inside func(schema *spec.Schema)
	object := func(schema *spec.Schema) {
		if schema.Properties == nil {
			schema.Properties = map[string]spec.Schema{}
		}
		schema.Properties["metadata"] = spec.Schema{SchemaProps: spec.SchemaProps{Ref: spec.MustCreateRef("#/definitions/" + objectMeta)}}
		for _, name := range []string{"apiVersion", "kind"} {
			schema.Properties[name] = spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"string"}}}
		}
	}
	inside = func(schema *spec.Schema) {
		if schema == nil {
			return
		}
		for name, property := range schema.Properties {
			inside(&property)
			schema.Properties[name] = property
		}
		if schema.Items != nil {
			inside(schema.Items.Schema)
		}
		if schema.AdditionalProperties != nil {
			inside(schema.AdditionalProperties.Schema)
		}
		if embedded, _ := schema.Extensions["x-kubernetes-embedded-resource"].(bool); embedded {
			object(schema)
		}
	}
	inside(root)
	object(root)
}
