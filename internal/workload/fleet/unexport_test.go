package fleet_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unforked/kcp"
	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/export"
	"github.com/unforked/kcp/internal/workload/fleet"
	"github.com/unforked/kcp/kcptest"
)

// unexport deletes the export of the compute workspace, which a SyncTarget holds.
func (s *site) unexport(t *testing.T) {
	t.Helper()
	if err := s.compute.Dynamic.Resource(apis.GroupVersion.WithResource("apiexports")).Delete(t.Context(), workload.KubernetesExport, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// unexported waits until the export is gone.
func (s *site) unexported(t *testing.T) {
	t.Helper()
	eventually(t, func() error {
		o, err := s.compute.Dynamic.Resource(apis.GroupVersion.WithResource("apiexports")).Get(t.Context(), workload.KubernetesExport, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the export exists: %v, %v", o, err)
	})
}

// copiesRemoved returns the reason and the message of the condition of the SyncTarget, "" if there is none.
func (s *site) copiesRemoved(t *testing.T) string {
	t.Helper()
	of, err := s.compute.targets.Get(t.Context(), "east", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := of.Status.Conditions.Get(workload.CopiesRemoved)
	if c == nil {
		return ""
	}
	return c.Reason + " " + c.Message
}

// TestCopiesGoWithTheirExport expects that the deletion of the export alone waits until the physical cluster has removed
// the copies, and says so. With another export, workloads run again.
func TestCopiesGoWithTheirExport(t *testing.T) {
	s := newSite(t, fleet.Options{})
	s.shop.Apply(workloads)
	release := s.holds(t, deployments(), "web")
	s.runs(t, core("services"), "web")
	s.unexport(t)
	eventually(t, func() error {
		o, err := s.compute.Dynamic.Resource(apis.GroupVersion.WithResource("apiexports")).Get(t.Context(), workload.KubernetesExport, metav1.GetOptions{})
		if err == nil && !strings.Contains(fmt.Sprint(o.Object["status"]), "the physical clusters remove the copies of workloads; the condition CopiesRemoved of the SyncTargets says which do") {
			err = fmt.Errorf("the export says %v", o.Object["status"])
		}
		if text := s.copiesRemoved(t); err == nil && !strings.HasPrefix(text, "RemovingCopies the export is being deleted") {
			err = fmt.Errorf("the SyncTarget says %q", text)
		}
		return err
	})
	says(t, s.shop, deployments(), "default", "web", workload.ComputeDeleted)
	release()
	s.unexported(t)
	for _, of := range []string{"web", "settings"} {
		if all := append(s.copies(t, deployments(), of), s.copies(t, core("configmaps"), of)...); len(all) > 0 {
			t.Errorf("%s is left: %v", of, all)
		}
	}
	placed(t, s.shop, false)
	if text := s.copiesRemoved(t); text != "" {
		t.Errorf("the SyncTarget says %s", text)
	}
	deleted(t, s.shop)

	if err := export.EnsureKubernetes(t.Context(), s.compute.Server, kcp.ClusterName(s.compute.Name)); err != nil {
		t.Fatal(err)
	}
	again := s.near.New(t)
	again.Apply(s.binding())
	again.Apply(placement("all", ""))
	again.Apply(workloads)
	s.runs(t, deployments(), "web")
	s.end(t) // and the deletion of the workspace is that of the workspace again
	s.ended(t)
	if all := s.copies(t, deployments(), "web"); len(all) > 0 {
		t.Errorf("copies are left: %v", all)
	}
}

// TestDeadClusterDoesNotKeepTheExport expects that the deletion of the export goes on without a physical cluster that
// does not answer, also over a restart, and that the compute workspace says what is left to do.
func TestDeadClusterDoesNotKeepTheExport(t *testing.T) {
	s := newSite(t, fleet.Options{Expire: time.Second, Retire: time.Hour})
	before := s.dies(t)
	s.unexport(t)
	eventually(t, func() error {
		if text := s.copiesRemoved(t); text == "" {
			return fmt.Errorf("the SyncTarget does not say that the export is being deleted")
		}
		return nil
	})
	s.restart(t, fleet.Options{Expire: time.Second, Retire: time.Millisecond}) // counts from the deletion on
	s.compute = computingIn(t, moved(t, s.near, s.compute.Cluster))
	s.unexported(t)
	remove := "kubectl delete namespaces -l " + workload.OwnerLabel + "=" + before.Status.Key
	if text := s.copiesRemoved(t); !strings.HasPrefix(text, `CopiesRemain physical cluster "east" may still have copies`) || !strings.Contains(text, `before the export "kubernetes" was deleted`) || !strings.Contains(text, remove) {
		t.Errorf("the SyncTarget says %q", text)
	}
	events, err := s.compute.Dynamic.Resource(core("events")).Namespace(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=APIExport"})
	if err != nil || len(events.Items) != 1 || !strings.Contains(fmt.Sprint(events.Items[0].Object["message"]), remove) {
		t.Errorf("the events are %v, %v", events, err)
	}
	placed(t, s.shop, false)
	deleted(t, s.shop)
}

// TestFencedClusterDoesNotKeepTheExport expects that the deletion of the export goes on without a physical cluster that was
// fenced, is not any more, and never answers again: what it removes first does not delay the end.
func TestFencedClusterDoesNotKeepTheExport(t *testing.T) {
	s := newSite(t, fleet.Options{Expire: time.Second, Retire: time.Second})
	s.dies(t)
	east := func() *workload.SyncTarget {
		of, err := s.compute.targets.Get(t.Context(), "east", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return of
	}
	eventually(t, func() error {
		since := east().Status.UnreachableSince
		if since == nil {
			return errors.New("the physical cluster answers")
		}
		return s.fence(t, fmt.Sprintf(`{"unreachableSince":%q}`, since.UTC().Format(time.RFC3339)))
	})
	eventually(t, func() error {
		if !east().Status.Conditions.IsTrue(workload.Fenced) {
			return errors.New("the SyncTarget is not fenced")
		}
		return nil
	})
	if err := s.fence(t, "null"); err != nil {
		t.Fatal(err)
	}
	s.unexport(t)
	s.unexported(t)
}

// fence sets the fence of the SyncTarget.
func (s *site) fence(t *testing.T, to string) error {
	t.Helper()
	_, err := s.compute.targets.Patch(t.Context(), "east", types.MergePatchType, []byte(`{"spec":{"fence":`+to+`}}`), metav1.PatchOptions{})
	return err
}

// TestUnusedExport expects that an export whose SyncTargets are gone can be deleted, also if that happened while no
// server had the extension.
func TestUnusedExport(t *testing.T) {
	dir := t.TempDir()
	var c computing
	for i, extensions := range [][]kcp.Extension{{fleet.Extension(fleet.Options{})}, nil, {fleet.Extension(fleet.Options{})}} {
		u := &kcptest.Universe{Server: &kcp.Server{Dir: dir, Listen: "127.0.0.1:0", NoSync: true, Extensions: extensions}}
		held := func(want bool) {
			t.Helper()
			eventually(t, func() error {
				o, err := c.Dynamic.Resource(apis.GroupVersion.WithResource("apiexports")).Get(t.Context(), workload.KubernetesExport, metav1.GetOptions{})
				if err == nil && (len(o.GetFinalizers()) > 0) != want {
					err = fmt.Errorf("the export has the finalizers %v", o.GetFinalizers())
				}
				return err
			})
		}
		targets := workload.GroupVersion.WithResource("synctargets")
		switch i {
		case 0:
			c = compute(t, u)
			c.register(t, "east", "")
			held(true)
			c.unregister(t, "east")
			held(false)
			c.register(t, "west", "")
			c.wait(t, "west", func(of *workload.SyncTarget) bool { return len(of.Finalizers) > 0 })
			held(true)
		case 1:
			c.Cluster = moved(t, u, c.Cluster)
			if _, err := c.Dynamic.Resource(targets).Patch(t.Context(), "west", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := c.Dynamic.Resource(targets).Delete(t.Context(), "west", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			held(true)
		case 2:
			c.Cluster = moved(t, u, c.Cluster)
			held(false)
		}
		if err := u.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
