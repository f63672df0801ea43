package v1alpha1

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestGet(t *testing.T) {
	var none Conditions
	if none.Get("A") != nil || none.IsTrue("A") {
		t.Error("a condition in an empty list")
	}
	c := Conditions{{Type: "A", Status: metav1.ConditionTrue}, {Type: "B", Status: metav1.ConditionFalse}, {Type: "C", Status: metav1.ConditionUnknown}}
	for ty, want := range map[Type]bool{"A": true, "B": false, "C": false, "D": false} {
		if got := c.IsTrue(ty); got != want {
			t.Errorf("IsTrue(%s) = %v", ty, got)
		}
	}
	if got := c.Get("B"); got != &c[1] {
		t.Errorf("Get(B) = %v, want the one in the list", got)
	}
}

func TestSet(t *testing.T) {
	before, later := metav1.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), metav1.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	start := Conditions{
		{Type: "A", Status: metav1.ConditionFalse, Severity: SeverityError, Reason: "R", Message: "m", LastTransitionTime: before},
		{Type: "B", Status: metav1.ConditionTrue, LastTransitionTime: before},
	}
	for name, c := range map[string]struct {
		set     Condition
		at      int
		want    Condition
		changed bool
	}{
		"nothing new": {
			Condition{Type: "A", Status: metav1.ConditionFalse, Severity: SeverityError, Reason: "R", Message: "m", LastTransitionTime: later}, 0,
			start[0], false,
		},
		"another message keeps the time": {
			Condition{Type: "A", Status: metav1.ConditionFalse, Severity: SeverityInfo, Reason: "S", Message: "n", LastTransitionTime: later}, 0,
			Condition{Type: "A", Status: metav1.ConditionFalse, Severity: SeverityInfo, Reason: "S", Message: "n", LastTransitionTime: before}, true,
		},
		"another status takes the time and the severity": {
			Condition{Type: "A", Status: metav1.ConditionTrue, Severity: SeverityError, LastTransitionTime: later}, 0,
			Condition{Type: "A", Status: metav1.ConditionTrue, LastTransitionTime: later}, true,
		},
		"the severity of one that is True is no change": {
			Condition{Type: "B", Status: metav1.ConditionTrue, Severity: SeverityInfo}, 1,
			start[1], false,
		},
		"a new one goes to its place": {
			Condition{Type: "C", Status: metav1.ConditionUnknown, LastTransitionTime: later}, 2,
			Condition{Type: "C", Status: metav1.ConditionUnknown, LastTransitionTime: later}, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, want := start.DeepCopy(), append(start.DeepCopy(), Condition{})[:max(len(start), c.at+1)]
			want[c.at] = c.want
			if changed := got.Set(c.set); changed != c.changed {
				t.Errorf("Set reports %v", changed)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The order is that of the existing kcp.
func TestSetSorts(t *testing.T) {
	var c Conditions
	for _, next := range []Type{"WorkspaceScheduled", "APIBindingsReconciled", Ready, "WorkspaceInitialized"} {
		c.Set(Condition{Type: next, Status: metav1.ConditionTrue})
	}
	var got []Type
	for _, one := range c {
		got = append(got, one.Type)
	}
	if diff := cmp.Diff([]Type{Ready, "APIBindingsReconciled", "WorkspaceInitialized", "WorkspaceScheduled"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestSetNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		<-time.After(1500 * time.Millisecond)
		now := metav1.Now().Rfc3339Copy()
		var c Conditions
		c.Set(Condition{Type: "A", Status: metav1.ConditionTrue})
		if got := c.Get("A").LastTransitionTime; !got.Equal(&now) {
			t.Errorf("set at %v, want %v", got, now)
		}
		raw, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		var back Conditions
		if err := json.Unmarshal(raw, &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c, back); diff != "" {
			t.Errorf("changed on the way through JSON: %s", diff)
		}
		if back.Set(Condition{Type: "A", Status: metav1.ConditionTrue}) {
			t.Error("setting what came back reports a change")
		}
	})
}
