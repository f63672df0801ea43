//go:build unix

package physical

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/test/stock"
)

// withSpec returns the definition of engines with a schema of spec.
func withSpec(schema string) string {
	return strings.Replace(engines, "x-kubernetes-preserve-unknown-fields: true", "properties: {spec: "+schema+", status: {type: object, x-kubernetes-preserve-unknown-fields: true}}", 1)
}

// refusedObjects expects rule I8: an object runs at a cluster that serves its kind and accepts it, wherever it begins.
// Before, no cluster serves engines.
func (s *tenant) refusedObjects(t *testing.T) {
	const each = 4 // about half of them begin at east
	east, west := s.clusters["east"], s.clusters["west"]
	east.define(t, withSpec(`{type: object, properties: {power: {type: integer, maximum: 5}}}`))
	west.define(t, withSpec(`{type: object, x-kubernetes-preserve-unknown-fields: true, properties: {power: {type: integer, maximum: 50}}}`))
	all := func(name string, spec map[string]any) {
		t.Helper()
		for i := range each {
			s.engineOf(t, fmt.Sprint(name, i), spec)
		}
		for i := range each {
			s.at(t, fmt.Sprint("engines.example.com/", name, i), "west 0/-")
		}
	}
	all("invalid", map[string]any{"power": int64(9)})
	all("unknown", map[string]any{"power": int64(3), "color": "red"})
	waits := func(name, why string, rejected int) {
		t.Helper()
		eventually(t, "reason of "+name, func() error {
			o, err := s.dynamic.Resource(engineResource()).Namespace("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			out := must(t, "workload", "explain", "engines.example.com/"+name, "-w", ":root:"+s.name)
			if !strings.Contains(fmt.Sprint(o.Object["status"]), why) || strings.Count(out, "Rejected: it does not accept the object") != rejected {
				return fmt.Errorf("%v\n%s", o.Object["status"], out)
			}
			return nil
		})
	}
	must(t, "workload", "cordon", "west", "-w", ":root:compute")
	s.engineOf(t, "late", map[string]any{"color": "red"})
	s.engineOf(t, "strong", map[string]any{"power": int64(9)})
	waits("late", "does not know a field", 1)
	waits("strong", "spec.power", 1)
	must(t, "workload", "uncordon", "west", "-w", ":root:compute")
	s.at(t, "engines.example.com/late", "west 0/-")
	s.at(t, "engines.example.com/strong", "west 0/-")
	s.engineOf(t, "nowhere", map[string]any{"power": int64(90)})
	waits("nowhere", "spec.power", 2)
	patch := []byte(`{"spec":{"power":7}}`)
	if _, err := s.dynamic.Resource(engineResource()).Namespace("default").Patch(t.Context(), "nowhere", "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.at(t, "engines.example.com/nowhere", "west 0/-")
	s.keepsRefusedUpdate(t)
	east.undefine(t)
	all("unserved", map[string]any{"power": int64(3)})
	eventually(t, "all copies at west", func() error {
		list, err := dynamicFor(t, west.Config(stock.AdminToken)).Resource(engineResource()).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) != 3*each+3 {
			err = fmt.Errorf("%d copies, want %d", len(list.Items), 3*each+3)
		}
		return err
	})
	if err := s.dynamic.Resource(engineResource()).Namespace("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
}

// keepsRefusedUpdate expects that an object stays where it runs if an update is refused there, and says so.
func (s *tenant) keepsRefusedUpdate(t *testing.T) {
	engine := s.dynamic.Resource(engineResource()).Namespace("default")
	copies := dynamicFor(t, s.clusters["west"].Config(stock.AdminToken)).Resource(engineResource())
	update := func(power int, check func(status string, copied any) bool) {
		t.Helper()
		if _, err := engine.Patch(t.Context(), "nowhere", "application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"power":%d}}`, power), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, fmt.Sprint("power ", power), func() error {
			o, err := engine.Get(t.Context(), "nowhere", metav1.GetOptions{})
			if err != nil {
				return err
			}
			list, err := copies.List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=nowhere"})
			if err != nil || len(list.Items) != 1 {
				return fmt.Errorf("%d copies, %w", len(list.Items), err)
			}
			spec, _ := list.Items[0].Object["spec"].(map[string]any)
			if status := fmt.Sprint(o.Object["status"]); !check(status, spec["power"]) {
				return fmt.Errorf("%v, %v", status, spec)
			}
			return nil
		})
	}
	update(70, func(status string, copied any) bool {
		return strings.Contains(status, "spec.power") && copied == int64(7)
	})
	update(8, func(status string, copied any) bool {
		return !strings.Contains(status, "spec.power") && copied == int64(8)
	})
}
