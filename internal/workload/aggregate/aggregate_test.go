package aggregate

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubectl/pkg/polymorphichelpers"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func counts(replicas, updated, available int32) appsv1.DeploymentStatus {
	return appsv1.DeploymentStatus{Replicas: replicas, UpdatedReplicas: updated, ReadyReplicas: available, AvailableReplicas: available}
}

// rollout returns whether kubectl rollout status ends for a Deployment, and its error.
func rollout(t *testing.T, d Deployment, s appsv1.DeploymentStatus) (bool, error) {
	t.Helper()
	o := &appsv1.Deployment{Status: s}
	o.Kind, o.APIVersion, o.Name, o.Generation, o.Spec.Replicas = "Deployment", "apps/v1", "web", d.Generation, &d.Replicas
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		t.Fatal(err)
	}
	_, done, err := (&polymorphichelpers.DeploymentStatusViewer{}).Status(unstructuredOf(content), 0)
	return done, err
}

func TestStatus(t *testing.T) {
	done := Report{Location: "eu", Generation: 3, Current: true, Status: counts(5, 5, 5)}
	behind := done
	behind.Generation = 2
	unseen := done
	unseen.Current = false
	half := done
	half.Status = counts(5, 5, 1)
	stuck := half
	stuck.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded", Message: "too late"}}
	refused := Report{Location: "us", Generation: 2, Reason: "Conflict", Message: "the object belongs to another manager"}
	leaving := behind
	leaving.Leaving = true
	for name, c := range map[string]struct {
		of                                []Report
		notScheduled                      string
		observed                          int64
		updated, available                int32
		isAvailable, progressing, failing string
		ends, fails                       bool
	}{
		"all done":           {of: []Report{done, done}, observed: 3, updated: 10, available: 10, isAvailable: "True", progressing: "NewReplicaSetAvailable", ends: true},
		"one is behind":      {of: []Report{done, behind}, observed: 2, updated: 5, available: 10, isAvailable: "True", progressing: "ReplicaSetUpdated"},
		"one has not seen":   {of: []Report{done, unseen}, observed: 2, updated: 5, available: 10, isAvailable: "True", progressing: "ReplicaSetUpdated"},
		"not all available":  {of: []Report{done, half}, observed: 3, updated: 10, available: 6, isAvailable: "False", progressing: "ReplicaSetUpdated"},
		"one is stuck":       {of: []Report{done, stuck}, observed: 3, updated: 10, available: 6, isAvailable: "False", progressing: "ProgressDeadlineExceeded", fails: true},
		"one refuses":        {of: []Report{done, refused}, observed: 2, updated: 5, available: 5, isAvailable: "False", progressing: "ReplicaSetUpdated", failing: "Conflict"},
		"one leaves":         {of: []Report{done, half, leaving}, observed: 3, updated: 10, available: 11, isAvailable: "True", progressing: "ReplicaSetUpdated"},
		"nothing is placed":  {notScheduled: "NoTarget", observed: 2, isAvailable: "False", progressing: "NotScheduled"},
		"only leaving parts": {of: []Report{leaving}, observed: 2, available: 5, isAvailable: "False", progressing: "ReplicaSetUpdated"},
	} {
		t.Run(name, func(t *testing.T) {
			d := Deployment{Generation: 3, Replicas: 10, NotScheduled: c.notScheduled, Status: appsv1.DeploymentStatus{ObservedGeneration: 2}}
			s := Status(d, c.of, now)
			got := map[appsv1.DeploymentConditionType]appsv1.DeploymentCondition{}
			for _, of := range s.Conditions {
				got[of.Type] = of
			}
			if s.ObservedGeneration != c.observed || s.UpdatedReplicas != c.updated || s.AvailableReplicas != c.available ||
				string(got["Available"].Status) != c.isAvailable || got["Progressing"].Reason != c.progressing || got["ReplicaFailure"].Reason != c.failing {
				t.Errorf("got %+v", s)
			}
			if ends, err := rollout(t, d, s); ends != c.ends || (err != nil) != c.fails {
				t.Errorf("kubectl rollout status: %v, %v", ends, err)
			}
			d.Status = s
			if diff := cmp.Diff(s, Status(d, c.of, now.Add(time.Hour))); diff != "" {
				t.Errorf("the status of the same reports changes: %s", diff)
			}
		})
	}
}

// Rule I7: a generation is observed only if all targets that keep a part applied it, and updated
// replicas are those of targets that did.
func TestStatusIsOfOneGeneration(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 50_000 {
		d := Deployment{Generation: 5, Replicas: r.Int32N(20), Status: appsv1.DeploymentStatus{ObservedGeneration: 4}}
		var of []Report
		want, kept, updated, all := true, 0, int32(0), int32(0)
		for range r.IntN(4) {
			n := r.Int32N(8)
			p := Report{Generation: 4 + r.Int64N(2), Current: r.IntN(4) > 0, Leaving: r.IntN(4) == 0, Status: counts(n, r.Int32N(n+1), r.Int32N(n+1))}
			of, all = append(of, p), all+n
			if !p.Leaving {
				kept++
				want = want && p.Generation == 5 && p.Current
			}
			if p.Generation == 5 && p.Current {
				updated += p.Status.UpdatedReplicas
			}
		}
		s := Status(d, of, now)
		if observed := s.ObservedGeneration == 5; observed != (want && kept > 0) || s.UpdatedReplicas != updated || s.Replicas != all {
			t.Fatalf("%+v: %+v", of, s)
		}
	}
}

// A target that reports what cannot be neither hides the others nor makes a status that the workspace refuses.
func TestImpossibleCounters(t *testing.T) {
	d := Deployment{Generation: 1, Replicas: 2}
	large := appsv1.DeploymentStatus{Replicas: 1<<31 - 1, ReadyReplicas: 1<<31 - 1, AvailableReplicas: 1<<31 - 1, TerminatingReplicas: new(int32(1<<31 - 1))}
	var all []Report
	for range 400 {
		all = append(all, Report{Status: large})
	}
	all = append(all, Report{Status: appsv1.DeploymentStatus{Replicas: -1 << 31, ReadyReplicas: -1, TerminatingReplicas: new(int32(-5))}})
	all[0].Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: strings.Repeat("ü", 10_000)}}
	if s := Status(d, all, now); s.Replicas != 400*mostCounted || s.ReadyReplicas != 400*mostCounted || *s.TerminatingReplicas != 400*mostCounted || len(s.Conditions[2].Message) > 1024 {
		t.Errorf("got %+v", s)
	}
	o := Object{Profile: profileOf("daemonsets"), Status: map[string]any{}}
	s := Merge(o, []Part{{Status: map[string]any{"numberReady": int64(2)}}, {Status: map[string]any{"numberReady": int64(-9)}}, {Status: map[string]any{"numberReady": 1e300}}}, now)
	if n, _ := number(s["numberReady"]); n < 2 || n > 2+mostCounted {
		t.Errorf("got %v", s)
	}
}
