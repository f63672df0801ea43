package serve

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func podHandler() wellKnown {
	return wellKnown{kind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, maxBody: 1 << 20}
}

// Objects are merged by the types of known kinds, and keep unknown fields.
func TestStrategicMergeOfKnownKinds(t *testing.T) {
	now := `{"metadata":{"name":"p","resourceVersion":"7"},"spec":{"containers":[{"name":"a","image":"one"}],"custom":[1,2],"big":9007199254740993}}`
	for patch, want := range map[string]struct {
		next   string
		pinned bool
	}{
		`{}`:                                     {now, false},
		`{"spec":{"containers":[{"name":"b"}]}}`: {`{"metadata":{"name":"p","resourceVersion":"7"},"spec":{"containers":[{"name":"b"},{"name":"a","image":"one"}],"custom":[1,2],"big":9007199254740993}}`, false},
		`{"metadata":{"resourceVersion":"6"},"spec":{"custom":1}}`: {`{"metadata":{"name":"p","resourceVersion":"6"},"spec":{"containers":[{"name":"a","image":"one"}],"custom":1,"big":9007199254740993}}`, true},
	} {
		next, pinned, err := podHandler().merge([]byte(now), []byte(patch))
		if err != nil || pinned != want.pinned {
			t.Errorf("%s: pinned %t, %v", patch, pinned, err)
			continue
		}
		if d := cmp.Diff(numbered(t, want.next), numbered(t, string(next))); d != "" {
			t.Errorf("%s (-want +got):\n%s", patch, d)
		}
	}
}

// numbered decodes JSON with every digit of its numbers.
func numbered(t *testing.T, text string) map[string]json.RawMessage {
	t.Helper()
	var parts map[string]json.RawMessage
	var spec struct{ Big json.Number }
	if err := json.Unmarshal([]byte(text), &parts); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(parts["spec"], &spec); err != nil || spec.Big != "9007199254740993" {
		t.Errorf("the large number became %s, %v", spec.Big, err)
	}
	for k, v := range parts {
		var any any
		if err := json.Unmarshal(v, &any); err != nil {
			t.Fatal(err)
		}
		sorted, err := json.Marshal(any)
		if err != nil {
			t.Fatal(err)
		}
		parts[k] = sorted
	}
	return parts
}

// With any schema and patch, a patch is refused or results in an object.
func FuzzStrategicMerge(f *testing.F) {
	for _, now := range []string{`{}`, `{"spec":1}`, `{"spec":{"containers":"a"}}`, `{"spec":{"containers":[1,{"name":{}},null]}}`, `{"metadata":[],"spec":{"volumes":{}}}`} {
		for _, patch := range []string{`{}`, `null`, `{"spec":null}`, `{"spec":{"containers":[{"name":"a","$patch":"delete"}]}}`, `{"spec":{"$retainKeys":["a"],"volumes":[{"$retainKeys":[]}]}}`,
			`{"spec":{"$setElementOrder/containers":[{"name":"a"},1],"containers":[{}]}}`, `{"$patch":"replace"}`, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"]}}`} {
			f.Add(now, patch)
		}
	}
	f.Fuzz(func(t *testing.T, now, patch string) {
		next, _, err := podHandler().merge([]byte(now), []byte(patch))
		if err == nil && !json.Valid(next) {
			t.Errorf("%s made %s", patch, next)
		}
	})
}
