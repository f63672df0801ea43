//go:build unix

package physical

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// condition waits for a state of a SyncTarget.
func (w *world) condition(t *testing.T, name string, of conditions.Type, ok func(*workload.SyncTargetStatus) bool) {
	t.Helper()
	eventually(t, "state of "+name, func() error {
		o, err := w.in(t, "compute").Resource(synctargets()).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		target := &workload.SyncTarget{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, target); err != nil {
			return err
		}
		if !ok(&target.Status) {
			return fmt.Errorf("unreachable since %v, condition %+v", target.Status.UnreachableSince, target.Status.Conditions.Get(of))
		}
		return nil
	})
}

func toleration(seconds int) string {
	return fmt.Sprintf(`{"spec":{"tolerations":[{"key":"workload.kcp.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":%d}]}}`, seconds)
}

// Six physical clusters in two zones: what leaves them, how fast, and what stays.
func TestSeatBelt(t *testing.T) {
	long(t)
	z := newZoned(t)
	s := z.shop(t, "shop", "compute")
	s.place(t, toleration(1))
	for i := range 10 {
		s.create(t, fmt.Sprint("web-", i), 6)
	}
	for i := range 10 {
		s.rolledOut(t, fmt.Sprint("web-", i))
	}
	t.Run("four of six are gone at once", func(t *testing.T) { z.losesMost(t, s) })
	t.Run("one is gone: they leave at the rate", func(t *testing.T) { z.losesOne(t, s) })
	t.Run("one zone is gone", func(t *testing.T) { z.losesZone(t, s) })
	t.Run("nothing fits", func(t *testing.T) { z.nothingFits(t, s) })
	t.Run("a drain under a budget", func(t *testing.T) { z.drainsUnderBudget(t, s) })
}

// losesMost expects that nothing leaves, except what an operator fences.
func (z *zoned) losesMost(t *testing.T, s *tenant) {
	before := s.actual(t)
	z.cut(t, "a", "b", "d", "e")
	z.condition(t, "a", workload.EvictionsHeld, func(of *workload.SyncTargetStatus) bool { return of.Conditions.IsTrue(workload.EvictionsHeld) })
	eventually(t, "explanation", func() error {
		out := must(t, "workload", "explain", "deployment/web-1", "-w", ":root:shop")
		if strings.Count(out, "Held: it does not answer, but most others do not either") != 4 {
			return errors.New(out)
		}
		return nil
	})
	if out := must(t, "workload", "list", "-w", ":root:compute"); !strings.Contains(out, "nothing leaves them") {
		t.Error(out)
	}
	if after := s.actual(t); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("before\n%v\nafter\n%v", before, after)
	}
	must(t, "workload", "fence", "a", "-w", ":root:compute")
	eventually(t, "what an operator fences leaves", func() error {
		for name, parts := range s.actual(t) {
			if !strings.Contains(parts, "a Evicting 1") || strings.Count(parts, "Active 1")+2*strings.Count(parts, "Active 2") != 6 {
				return fmt.Errorf("%s: %s", name, parts)
			}
			for _, held := range []string{"b", "d", "e"} {
				if !strings.Contains(parts, held+" Active 1") {
					return fmt.Errorf("%s: %s", name, parts)
				}
			}
		}
		return nil
	})
	z.mend(t)
	z.condition(t, "a", workload.Fenced, func(of *workload.SyncTargetStatus) bool {
		c := of.Conditions.Get(workload.Fenced)
		return c != nil && c.Status == metav1.ConditionFalse && !of.Conditions.IsTrue(workload.EvictionsHeld)
	})
	for i := range 10 {
		s.rolledOut(t, fmt.Sprint("web-", i))
	}
	if out := must(t, "workload", "list", "-w", ":root:compute"); strings.Contains(out, "fenced") || strings.Contains(out, "nothing leaves them") {
		t.Error(out)
	}
}

// losesOne watches how many workloads have begun to leave.
func (z *zoned) losesOne(t *testing.T, s *tenant) {
	z.cut(t, "b")
	var first time.Time
	limited := false
	eventually(t, "all leave b", func() error {
		now := time.Now()
		begun, waits, parts := 0, "", s.actual(t)
		for name, of := range parts {
			if strings.Contains(of, "b Active") {
				waits = name
			} else {
				begun++
			}
		}
		if begun > 0 && first.IsZero() {
			first = now.Add(-time.Second) // it may have begun before
		}
		if most := 4 + time.Since(first).Seconds() + 1; begun > 0 && float64(begun) > most {
			t.Fatalf("%d workloads leave after %v", begun, time.Since(first))
		}
		if waits != "" {
			out := must(t, "workload", "explain", "deployment/"+waits, "-w", ":root:shop")
			limited = limited || strings.Contains(out, "RateLimited: it does not answer; the workload leaves when it is its turn")
			return fmt.Errorf("%d of %d", begun, len(parts))
		}
		return nil
	})
	if !limited {
		t.Error("no workload says that it waits for its turn")
	}
	for i := range 10 {
		s.rolledOut(t, fmt.Sprint("web-", i))
	}
	z.mend(t)
	s.settled(t)
}

// settled waits until nothing is on its way.
func (s *tenant) settled(t *testing.T) {
	t.Helper()
	eventually(t, "rest", func() error {
		for name, parts := range s.actual(t) {
			if strings.Contains(parts, "Removing") || strings.Contains(parts, "Evicting") {
				return fmt.Errorf("%s: %s", name, parts)
			}
		}
		return nil
	})
}

// losesZone expects that half of all, which are a zone, are replaced by the others.
func (z *zoned) losesZone(t *testing.T, s *tenant) {
	z.cut(t, "d", "e", "f")
	eventually(t, "all leave the zone", func() error {
		for name, parts := range s.actual(t) {
			for _, gone := range []string{"d", "e", "f"} {
				if strings.Contains(parts, gone+" Active") || strings.Contains(parts, gone+" Evicting") {
					return fmt.Errorf("%s: %s", name, parts)
				}
			}
		}
		return nil
	})
	for i := range 10 {
		s.rolledOut(t, fmt.Sprint("web-", i))
	}
	z.mend(t)
	s.settled(t)
	eventually(t, "the zone is cleaned", func() error {
		all, err := z.clusters["shared"].AppsV1().Deployments("").List(t.Context(), metav1.ListOptions{LabelSelector: workload.OwnerLabel + "=" + z.keyOf(t, "d")})
		if err == nil && len(all.Items) > 0 {
			err = fmt.Errorf("%d Deployments", len(all.Items))
		}
		return err
	})
}

// nothingFits expects that parts stay if the other targets do not take them.
func (z *zoned) nothingFits(t *testing.T, s *tenant) {
	s.place(t, `{"spec":{"strategy":{"divide":{"maxPerTarget":2}}}}`)
	s.create(t, "tight", 12)
	s.rolledOut(t, "tight")
	z.cut(t, "c")
	eventually(t, "NoFit", func() error {
		parts := s.actual(t)["tight"]
		if !strings.Contains(parts, "c Evicting 2") || !strings.HasSuffix(parts, "NoFit") {
			return errors.New(parts)
		}
		return nil
	})
	all, err := z.clusters["shared"].AppsV1().Deployments("").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=tight"})
	if err != nil || len(all.Items) != 6 {
		t.Errorf("%d copies, %v", len(all.Items), err)
	}
	z.mend(t)
	eventually(t, "return", func() error {
		if parts := s.actual(t)["tight"]; strings.Count(parts, "Active 2") != 6 {
			return errors.New(parts)
		}
		return nil
	})
	s.rolledOut(t, "tight")
	s.remove(t, "tight")
	s.place(t, `{"spec":{"strategy":{"divide":null}}}`)
}

// drainsUnderBudget expects that a StatefulSet that may not stop keeps its target.
func (z *zoned) drainsUnderBudget(t *testing.T, s *tenant) {
	budgets := s.PolicyV1().PodDisruptionBudgets("default")
	_, err := budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "budget"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.statefulSet(t, "db")
	eventually(t, "it runs", func() error {
		o, err := s.AppsV1().StatefulSets("default").Get(t.Context(), "db", metav1.GetOptions{})
		if err == nil && o.Status.ReadyReplicas != 2 {
			err = fmt.Errorf("%+v", o.Status)
		}
		return err
	})
	at, _, _ := strings.Cut(s.actual(t)["db"], " ")
	if out, err := kubectl(t, "workload", "drain", at, "-w", ":root:compute", "--timeout", "8s"); err == nil || !strings.Contains(err.Error(), "still has") {
		t.Errorf("%v\n%s", err, out)
	}
	if out := must(t, "workload", "explain", "statefulset/db", "-w", ":root:shop"); !strings.Contains(out, "(Budget)") || !strings.Contains(out, "PodDisruptionBudget") {
		t.Error(out)
	}
	if err := budgets.Delete(t.Context(), "budget", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	must(t, "workload", "drain", at, "-w", ":root:compute")
	must(t, "workload", "uncordon", at, "-w", ":root:compute")
	if now := s.actual(t)["db"]; strings.HasPrefix(now, at+" ") {
		t.Error(now)
	}
	if err := s.AppsV1().StatefulSets("default").Delete(t.Context(), "db", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// losesAgentAlone loses the connection to a cluster that lives, as outside probes say. Then they say
// that it is down.
func (s *tenant) losesAgentAlone(t *testing.T) {
	var code atomic.Int32
	code.Store(http.StatusOK)
	outside := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(code.Load())) }))
	t.Cleanup(outside.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: outside.Certificate().Raw})
	var probes []workload.SyncTargetProbe
	for _, path := range []string{"/one", "/two"} {
		probes = append(probes, workload.SyncTargetProbe{URL: outside.URL + path, CABundle: authority})
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"probes": probes}})
	if err != nil {
		t.Fatal(err)
	}
	targets := s.in(t, "compute").Resource(synctargets())
	if _, err := targets.Patch(t.Context(), "east", "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.place(t, toleration(1))
	s.create(t, "probed", 6)
	s.rolledOut(t, "probed")
	before := must(t, "workload", "get", "deployment/probed", "-w", ":root:"+s.name)
	freeze(t, s.clusters["east"])
	s.condition(t, "east", workload.HeartbeatHealthy, func(of *workload.SyncTargetStatus) bool {
		c := of.Conditions.Get(workload.HeartbeatHealthy)
		return c != nil && c.Reason == workload.AgentLost && of.Conditions.IsTrue(workload.APIServerHealthy) && of.UnreachableSince == nil
	})
	for _, args := range [][]string{{"list"}, {"describe", "east"}} {
		if out := must(t, append(append([]string{"workload"}, args...), "-w", ":root:compute")...); !strings.Contains(out, "False (AgentLost)") {
			t.Error(out)
		}
	}
	if out := must(t, "workload", "explain", "deployment/probed", "-w", ":root:"+s.name); !strings.Contains(out, "AgentLost: its agent does not report, but the cluster lives") {
		t.Error(out)
	}
	if _, err := kubectl(t, "workload", "fence", "east", "-w", ":root:compute"); err == nil || !strings.Contains(err.Error(), "is known to live") {
		t.Errorf("fence: %v", err)
	}
	if after := must(t, "workload", "get", "deployment/probed", "-w", ":root:"+s.name); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	code.Store(http.StatusServiceUnavailable)
	s.condition(t, "east", workload.APIServerHealthy, func(of *workload.SyncTargetStatus) bool {
		c := of.Conditions.Get(workload.APIServerHealthy)
		return c != nil && c.Reason == workload.DownByProbes && of.UnreachableSince != nil
	})
	s.split(t, "probed", "east 3/-, west 6/6")
	s.clusters["east"].signal(t, syscall.SIGCONT)
	s.split(t, "probed", "west 6/6")
	s.rolledOut(t, "probed")
	s.remove(t, "probed")
}

// signal sends a signal to the API server of a physical cluster, which then hangs or goes on.
func (c *cluster) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(c.API.PID(), s); err != nil {
		t.Fatal(err)
	}
}

func (s *tenant) losesCluster(t *testing.T) {
	s.place(t, `{"spec":{"tolerations":[{"key":"workload.kcp.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":2}]}}`)
	s.create(t, "precious", 6)
	s.rolledOut(t, "precious")
	s.split(t, "precious", "east 3/3, west 3/3")
	east := s.clusters["east"]
	east.signal(t, syscall.SIGSTOP)
	stopped := true
	t.Cleanup(func() {
		if stopped {
			east.signal(t, syscall.SIGCONT)
		}
	})
	s.split(t, "precious", "east 3/-, west 6/6")
	s.rolledOut(t, "precious")
	if out := must(t, "workload", "describe", "east", "-w", ":root:compute"); !strings.Contains(out, "False (Unreachable)") {
		t.Error(out)
	}
	east.signal(t, syscall.SIGCONT)
	stopped = false
	s.split(t, "precious", "west 6/6")
	eventually(t, "removal", func() error {
		all, err := east.copies(t.Context(), "precious")
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("it has %d replicas", *all[0].Spec.Replicas)
		}
		return err
	})
	s.rolledOut(t, "precious")
}

// losesAll expects that nothing moves or is removed while the server reaches no physical cluster.
func (s *tenant) losesAll(t *testing.T) {
	s.place(t, toleration(5)) // more than between the losses of two clusters that stop at once
	s.create(t, "steady", 6)
	s.rolledOut(t, "steady")
	before := must(t, "workload", "get", "deployment/steady", "-w", ":root:"+s.name)
	for _, c := range s.clusters {
		c.signal(t, syscall.SIGSTOP)
	}
	eventually(t, "all are unreachable", func() error {
		out := must(t, "workload", "list", "-w", ":root:compute")
		if strings.Count(out, "Unreachable") != 2 {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	eventually(t, "the toleration has passed, and nothing leaves", func() error {
		out := must(t, "workload", "explain", "deployment/steady", "-w", ":root:"+s.name)
		if strings.Count(out, "most others do not either") != 2 {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	if after := must(t, "workload", "get", "deployment/steady", "-w", ":root:"+s.name); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	for _, c := range s.clusters {
		c.signal(t, syscall.SIGCONT)
	}
	eventually(t, "all are back", func() error {
		out := must(t, "workload", "list", "-w", ":root:compute")
		if strings.Contains(out, "Unreachable") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	s.rolledOut(t, "steady")
	if after := must(t, "workload", "get", "deployment/steady", "-w", ":root:"+s.name); after != before {
		t.Errorf("before:\n%s\nat the end:\n%s", before, after)
	}
}
