package tenancy

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
)

func allowed() error { return nil }

// A home whose creation was interrupted is completed, by the loop or by the next request.
func TestHomeIsCompleted(t *testing.T) {
	w := openWorld(t, t.TempDir())
	for name, complete := range map[string]func(user.Info) error{
		"by-the-loop": func(u user.Info) error { return w.Complete(t.Context(), cluster.Home(u.GetName())) },
		"by-asking": func(u user.Info) error {
			home, err := w.Home(t.Context(), u, func() error { return errors.New("it is there") })
			if err == nil && home.Status.Phase != core.PhaseReady {
				t.Errorf("%s: the home is %s", u.GetName(), home.Status.Phase)
			}
			return err
		},
	} {
		u := &user.DefaultInfo{Name: name}
		if err := w.createFirstHome(t.Context(), new(w.birth(cluster.Home(name), metav1.Now())), name, u); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second call writes nothing
			if err := complete(u); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		l, _, err := read[core.LogicalCluster](t.Context(), w.Store, clusterKey(cluster.Home(name)))
		if err != nil || l.Status.Phase != core.PhaseReady || l.Labels[core.PhaseLabel] != "Ready" || !l.Status.Conditions.IsTrue(core.WorkspaceInitialized) {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
}

// If the names of two users have the same hash, the second user has no home.
func TestHomeOfAnother(t *testing.T) {
	w := openWorld(t, t.TempDir())
	if err := w.createFirstHome(t.Context(), new(w.birth(cluster.Home("bob"), metav1.Now())), "alice", &user.DefaultInfo{Name: "alice"}); err != nil {
		t.Fatal(err)
	}
	if home, err := w.Home(t.Context(), &user.DefaultInfo{Name: "bob"}, allowed); !errors.Is(err, ErrHomeless) {
		t.Errorf("bob has the home %v, %v", home, err)
	}
	if home, err := w.Home(t.Context(), &user.DefaultInfo{Name: "alice"}, allowed); err != nil || home.Spec.Cluster != string(cluster.Home("alice")) {
		t.Errorf("alice has the home %v, %v", home, err)
	}
	for _, name := range []string{"", user.Anonymous, "a\xff"} {
		if home, err := w.Home(t.Context(), &user.DefaultInfo{Name: name}, allowed); !errors.Is(err, ErrHomeless) {
			t.Errorf("%q has the home %v, %v", name, home, err)
		}
	}
}
