package fleet_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/syncer"
)

// view returns a client for the workloads in the view of the agent, with its certificate.
func (s *site) view(t *testing.T) dynamic.ResourceInterface {
	t.Helper()
	secret, err := kubernetes.NewForConfigOrDie(s.physical.Config).CoreV1().Secrets("default").Get(t.Context(), "kcp-agent-credentials", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	admin, err := clientcmd.BuildConfigFromFlags("", s.compute.Server.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	in, err := dynamic.NewForConfig(&rest.Config{Host: s.compute.Server.URL() + string(secret.Data["view"]) + "/clusters/*", TLSClientConfig: rest.TLSClientConfig{
		CAData: admin.CAData, CAFile: admin.CAFile, CertData: secret.Data[corev1.TLSCertKey], KeyData: secret.Data[corev1.TLSPrivateKeyKey]}})
	if err != nil {
		t.Fatal(err)
	}
	return in.Resource(workload.GroupVersion.WithResource(syncer.Workloads))
}

// settings sets what the ConfigMap of a consumer says, and waits until the copy says so.
func (s *site) settings(t *testing.T, text string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"data":{"key":%q}}`, text)
	if _, err := s.shop.Dynamic.Resource(core("configmaps")).Namespace("default").Patch(t.Context(), "settings", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		all := s.copies(t, core("configmaps"), "settings")
		if len(all) != 1 || !strings.Contains(fmt.Sprint(all[0].Object["data"]), text) {
			return fmt.Errorf("the copies of the ConfigMap are %v", all)
		}
		return nil
	})
}

// TestChangedDependencies expects that a change of a ConfigMap reaches the agent without the objects that refer to it,
// and that the view has the ConfigMap as long as it has one of these.
func TestChangedDependencies(t *testing.T) {
	s := agentSite(t)
	s.shop.Apply(workloads)
	s.shop.Apply(strings.ReplaceAll(workloads, "{name: web}", "{name: other}"))
	for _, name := range []string{"web", "other"} {
		s.runs(t, deployments(), name)
	}
	s.settings(t, "before")
	in := s.view(t)
	var list *unstructured.UnstructuredList
	eventually(t, func() (err error) { // the numbers of the revisions are the last that the server writes
		list, err = in.List(t.Context(), metav1.ListOptions{})
		if n := strings.Count(fmt.Sprint(list), "deployment.kubernetes.io/revision:1"); err == nil && n != 2 {
			err = fmt.Errorf("%d Deployments have a revision", n)
		}
		return err
	})
	named := func(o *unstructured.Unstructured) string {
		resource, _, _ := unstructured.NestedString(o.Object, "resource")
		name, _, _ := unstructured.NestedString(o.Object, "object", "metadata", "name")
		return resource + "/" + name
	}
	var has []string
	for i := range list.Items {
		has = append(has, named(&list.Items[i]))
	}
	slices.Sort(has)
	if want := []string{"configmaps/settings", "deployments.apps/other", "deployments.apps/web", "services/other", "services/web"}; !slices.Equal(has, want) {
		t.Fatalf("the view has %v, want %v", has, want)
	}
	w, err := in.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	// until returns the events before the one about an object.
	until := func(last string) (all []string) {
		t.Helper()
		for e := range w.ResultChan() {
			o, ok := e.Object.(*unstructured.Unstructured)
			if !ok {
				t.Fatalf("event %v", e)
			}
			if all = append(all, string(e.Type)+" "+named(o)); strings.HasSuffix(all[len(all)-1], last) {
				return all
			}
		}
		t.Fatalf("the watch ended after %v", all)
		return nil
	}
	s.settings(t, "after")
	patch := []byte(`{"spec":{"template":{"metadata":{"labels":{"a":"b"}}}}}`)
	if _, err := s.shop.Dynamic.Resource(deployments()).Namespace("default").Patch(t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, want := until("deployments.apps/web"), []string{"MODIFIED configmaps/settings", "MODIFIED deployments.apps/web"}; !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
	if err := s.shop.Dynamic.Resource(core("configmaps")).Namespace("default").Delete(t.Context(), "settings", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := until("configmaps/settings"); !slices.Equal(got, []string{"MODIFIED configmaps/settings"}) { // it is missing, and still needed
		t.Errorf("events %v", got)
	}
	for _, name := range []string{"web", "other"} {
		if err := s.shop.Dynamic.Resource(deployments()).Namespace("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.empty(t, deployments(), name)
	}
	eventually(t, func() error {
		list, err := in.List(t.Context(), metav1.ListOptions{})
		for i := range list.Items {
			if of := named(&list.Items[i]); !strings.HasPrefix(of, "services/") {
				err = fmt.Errorf("the view still has %s", of)
			}
		}
		return err
	})
}
