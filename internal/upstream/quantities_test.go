package upstream

import (
	"encoding/json"
	"runtime"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

// A quantity of a few bytes takes no more time and memory than others. All others mean what they did before.
func TestQuantitiesAreBounded(t *testing.T) {
	same := []string{"1", "0", "1.5", "100m", "1k", "5Gi", "2E", "1e3", "1E3", "12e-3", "1e-10000", "3e10000", "+1", "-7Ki"}
	var before []resource.Quantity
	for _, text := range same {
		before = append(before, resource.MustParse(text))
	}
	SetGlobals()
	runtime.GC()
	for i, text := range same {
		q, err := resource.ParseQuantity(text)
		if err != nil || q.String() != before[i].String() || q.Format != before[i].Format {
			t.Errorf("%s is %v, %v", text, q.String(), err)
		}
	}
	for _, text := range []string{"1e-10001", "1e-2000000000", "1E2000000000", "0.1e-9223372036854775808", "1e4294967297", "1e-4294967297", "1e99999999999999999999", "1e", "1x"} {
		if q, err := resource.ParseQuantity(text); err == nil {
			t.Errorf("%s is parsed as %d digits", text, len(q.String()))
		}
		var of struct{ Q resource.Quantity }
		if json.Unmarshal([]byte(`{"q":"`+text+`"}`), &of) == nil {
			t.Errorf("%s is parsed in JSON", text)
		}
	}
	if q := resource.MustParse("1500m"); q.String() != "1500m" || q.Cmp(resource.MustParse("1.5")) != 0 {
		t.Errorf("got %s", q.String())
	}
}
