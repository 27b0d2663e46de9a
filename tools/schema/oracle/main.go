// Command oracle asks Kubernetes' own library what two edits of an object mean together, and whether eddy's merge says the same.
//
//	cargo build --example merge_objects
//	cd tools/schema && go run ./oracle -merge ../../target/debug/examples/merge_objects [-pairs 20] [-triples 5] [-seed 1]
//
// The objects are the fully populated ones that k8s.io/api is tested with. structured-merge-diff, by which server-side apply works,
// says what an edit changed and whether two of them touch the same. Where they do not, both must be in eddy's merge and nothing
// else; JSON and protobuf alike. So it is for three edits, and for custom resources by the schemas of the definitions in crds.
//
// With -objects FILE the objects are those of a real cluster's store: what "etcdctl get /registry/ --prefix -w json" prints.
package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"

	core "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

var (
	merge   = flag.String("merge", "../../target/debug/examples/merge_objects", "the program that merges with eddy's code")
	pairs   = flag.Int("pairs", 20, "pairs of edits for each kind and encoding")
	triples = flag.Int("triples", 5, "triples of edits for each kind and encoding")
	seed    = flag.Int64("seed", 1, "of the edits")
	objects = flag.String("objects", "", "take the objects of a store instead: what etcdctl get --prefix -w json prints")
	show    = flag.Int("show", 10, "how many failures are shown")
)

func main() {
	flag.Parse()
	if err := apiextensions.AddToScheme(scheme.Scheme); err != nil {
		fatal(err)
	}
	if err := apiregistration.AddToScheme(scheme.Scheme); err != nil {
		fatal(err)
	}
	var fixtures []fixture
	if *objects == "" {
		fixtures = populated()
	} else {
		fixtures = stored(*objects)
	}
	var subjects []subject
	for _, fixture := range fixtures {
		subjects = append(subjects, builtIn(fixture))
	}
	random := rand.New(rand.NewSource(*seed))
	failed := codec(fixtures) + edits(subjects, nil, 2, *pairs, random) + edits(subjects, nil, 3, *triples, random)
	if *objects != "" {
		fmt.Printf("%d passed, %d failed\n", passed, failed)
		if failed > 0 || passed == 0 {
			os.Exit(1)
		}
		return
	}
	customs, definitions := customs()
	fmt.Printf("custom resources of %d definitions:\n", len(definitions))
	failed += edits(customs, definitions, 2, 30**pairs, random) + edits(customs, definitions, 3, 30**triples, random)
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// fixture is an object as Kubernetes' tests have it, in both encodings.
type fixture struct {
	name      string
	json, raw []byte
	object    runtime.Object
}

// populated are those of the modules that this program is built with.
func populated() []fixture {
	var all []fixture
	for module, folder := range map[string]string{
		"k8s.io/api":                     "testdata/HEAD",
		"k8s.io/apiextensions-apiserver": "pkg/apis/testdata/HEAD",
	} {
		dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
		if err != nil {
			fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), folder, "*.json"))
		if err != nil || len(files) == 0 {
			fatal(fmt.Errorf("no fixtures in %s: %v", module, err))
		}
		for _, file := range files {
			fixture := fixture{name: strings.TrimSuffix(filepath.Base(file), ".json")}
			if fixture.json, err = os.ReadFile(file); err != nil {
				fatal(err)
			}
			if fixture.raw, err = os.ReadFile(strings.TrimSuffix(file, ".json") + ".pb"); err != nil {
				fatal(err)
			}
			if fixture.object, err = decode(fixture.raw); err == nil && isStored(fixture.object) {
				all = append(all, fixture)
			}
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].name < all[j].name })
	return all
}

// stored are those of a real store that are of a built-in kind.
func stored(path string) []fixture {
	text, err := os.ReadFile(path)
	if err != nil {
		fatal(err)
	}
	var answer struct{ Kvs []struct{ Key, Value []byte } }
	if err := json.Unmarshal(text, &answer); err != nil {
		fatal(fmt.Errorf("%s: %w", path, err))
	}
	var all []fixture
	kinds := map[string]int{}
	for _, kv := range answer.Kvs {
		object, err := decode(kv.Value)
		if err != nil || !isStored(object) {
			continue
		}
		kinds[object.GetObjectKind().GroupVersionKind().String()]++
		// Protobuf cannot tell an empty list from none.
		raw := encode(object, runtime.ContentTypeProtobuf)
		if object, err = decode(raw); err != nil {
			fatal(fmt.Errorf("%s: %w", kv.Key, err))
		}
		text := encode(object, runtime.ContentTypeJSON)
		all = append(all, fixture{name: string(kv.Key), json: text, raw: raw, object: object})
	}
	fmt.Printf("%d of %d objects, of %d kinds\n", len(all), len(answer.Kvs), len(kinds))
	return all
}

// isStored tells whether an API server stores such an object: it can be applied, or is one of two that are written otherwise.
func isStored(object runtime.Object) bool {
	switch object.(type) {
	case *apiextensions.CustomResourceDefinition, *core.RangeAllocation:
		return true
	}
	_, hasMetadata := object.(meta.Object)
	_, err := typedOf(object)
	return hasMetadata && err == nil
}

var codecs = serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict)

func decode(value []byte) (runtime.Object, error) {
	object, _, err := codecs.UniversalDeserializer().Decode(value, nil, nil)
	return object, err
}

// encode writes an object as an API server does.
func encode(object runtime.Object, mediaType string) []byte {
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), mediaType)
	var out bytes.Buffer
	if err := info.Serializer.Encode(object, &out); err != nil {
		fatal(err)
	}
	return out.Bytes()
}

// ask hands lines to eddy and returns its answers. The definitions are those of custom resources.
func ask(definitions [][]byte, lines [][][]byte) [][][]byte {
	command := exec.Command(*merge)
	input, err := command.StdinPipe()
	if err != nil {
		fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		fatal(err)
	}
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		fatal(err)
	}
	go func() {
		writer := bufio.NewWriter(input)
		for _, definition := range definitions {
			fmt.Fprintln(writer, "definition", base64.StdEncoding.EncodeToString(definition))
		}
		for at, values := range lines {
			fmt.Fprint(writer, at)
			for _, value := range values {
				fmt.Fprint(writer, " ", base64.StdEncoding.EncodeToString(value))
			}
			fmt.Fprintln(writer)
		}
		writer.Flush()
		input.Close()
	}()
	var answers [][][]byte
	reader := bufio.NewReader(output)
	for {
		line, err := reader.ReadString('\n')
		if err == io.EOF {
			break
		} else if err != nil {
			fatal(err)
		}
		var values [][]byte
		for _, word := range strings.Fields(line)[1:] {
			value, err := base64.StdEncoding.DecodeString(word)
			if word == "-" {
				value, err = nil, nil
			}
			if err != nil {
				fatal(err)
			}
			values = append(values, value)
		}
		answers = append(answers, values)
	}
	if err := command.Wait(); err != nil || len(answers) != len(lines) {
		fatal(fmt.Errorf("%d of %d answers: %v", len(answers), len(lines), err))
	}
	return answers
}

// codec checks that eddy reads and writes each object as Kubernetes does.
func codec(fixtures []fixture) (failed int) {
	var lines [][][]byte
	for _, fixture := range fixtures {
		lines = append(lines, [][]byte{fixture.raw}, [][]byte{fixture.json})
	}
	report := &report{what: "objects read and written again"}
	for at, answer := range ask(nil, lines) {
		fixture := fixtures[at/2]
		from := []string{"protobuf", "JSON"}[at%2]
		if answer[0] == nil || answer[1] == nil {
			report.fail("%s, from %s: not understood", fixture.name, from)
			continue
		}
		object, err := decode(answer[0])
		switch {
		case err != nil:
			report.fail("%s, from %s: its JSON cannot be read: %v", fixture.name, from, err)
		case !equality.Semantic.DeepEqual(object, fixture.object):
			report.fail("%s, from %s: its JSON is another object: %s", fixture.name, from, difference(encode(object, runtime.ContentTypeProtobuf), fixture.raw))
		case !bytes.Equal(answer[1], fixture.raw) && !(*objects != "" && isSame(answer[1], fixture.object)):
			report.fail("%s, from %s: its protobuf has other bytes: %s", fixture.name, from, difference(answer[1], fixture.raw))
		default:
			report.passed++
		}
	}
	return report.print()
}

// isSame tells whether raw is that object. A real store has empty bytes where eddy writes none.
func isSame(raw []byte, object runtime.Object) bool {
	read, err := decode(raw)
	return err == nil && equality.Semantic.DeepEqual(read, object)
}

func difference(got, want []byte) string {
	at := 0
	for at < len(got) && at < len(want) && got[at] == want[at] {
		at++
	}
	end := func(b []byte) []byte { return b[max(0, min(at-40, len(b))):min(len(b), at+60)] }
	return fmt.Sprintf("at byte %d of %d: %q, not %q", at, len(want), end(got), end(want))
}

// passed counts what passed in all reports.
var passed int

// report counts.
type report struct {
	what                     string
	passed, excepted, failed int
}

func (r *report) fail(format string, arguments ...any) {
	if r.failed++; r.failed <= *show {
		fmt.Printf("FAILED "+format+"\n", arguments...)
	}
}

func (r *report) print() int {
	excepted := ""
	if r.excepted > 0 {
		excepted = fmt.Sprintf(", %d excepted", r.excepted)
	}
	fmt.Printf("%s: %d passed%s, %d failed\n", r.what, r.passed, excepted, r.failed)
	passed += r.passed
	return r.failed
}
