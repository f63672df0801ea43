package control

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// checkMergePatch has another implementation apply the patch between two objects.
func checkMergePatch(t *testing.T, old, next map[string]any) {
	t.Helper()
	patch := mergePatch(old, next)
	before, err := json.Marshal(old)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(patch)
	if err != nil {
		t.Fatal(err)
	}
	applied, err := jsonpatch.MergePatch(before, body)
	if err != nil {
		t.Fatalf("%s does not apply to %s: %v", body, before, err)
	}
	var got map[string]any
	if err := json.Unmarshal(applied, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(withoutNulls(next), withoutNulls(got)); diff != "" {
		t.Fatalf("%s patched with %s (-want +got):\n%s", before, body, diff)
	}
	if same := cmp.Equal(withoutNulls(old), withoutNulls(next)); same && len(withoutNulls(patch).(map[string]any)) > 0 {
		t.Fatalf("%s is the patch between equal objects", body)
	}
}

// withoutNulls drops fields that are null, which a merge patch cannot express.
func withoutNulls(v any) any {
	fields, ok := v.(map[string]any)
	if !ok {
		return v
	}
	kept := map[string]any{}
	for name, value := range fields {
		if value != nil {
			kept[name] = withoutNulls(value)
		}
	}
	return kept
}

func TestMergePatchTurnsOneObjectIntoAnother(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		old := randomFields(random, 3)
		next := randomFields(random, 3)
		checkMergePatch(t, old, next)
		checkMergePatch(t, old, old)
	}
}

func randomFields(random *rand.Rand, depth int) map[string]any {
	fields := map[string]any{}
	for _, name := range []string{"a", "b", "c"} {
		switch n := random.IntN(8); {
		case n < 2 && depth > 0:
			fields[name] = randomFields(random, depth-1)
		case n == 2:
			fields[name] = []any{float64(random.IntN(2)), map[string]any{"a": "x"}}
		case n == 3:
			fields[name] = nil
		case n < 6:
			fields[name] = float64(random.IntN(2))
		}
	}
	return fields
}

func FuzzMergePatch(f *testing.F) {
	f.Add(`{"a":{"b":1,"c":[1,2]},"d":"x"}`, `{"a":{"b":2},"e":{"f":{}}}`)
	f.Add(`{"a":null,"b":1}`, `{"b":null,"c":{"d":null}}`)
	f.Add(`{"a":{}}`, `{"a":[]}`)
	f.Add(`{"a":1}`, `{"a":{"b":1}}`)
	f.Fuzz(func(t *testing.T, before, after string) {
		var old, next map[string]any
		if json.Unmarshal([]byte(before), &old) != nil || json.Unmarshal([]byte(after), &next) != nil || old == nil || next == nil {
			return
		}
		checkMergePatch(t, old, next)
	})
}
