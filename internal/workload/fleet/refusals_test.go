package fleet_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/unforked/kcp/kcptest"
)

// A hook is a webhook of a workspace that refuses what it is asked about.
type hook struct {
	asked    atomic.Int32
	answered atomic.Int32
	free     chan struct{} // it answers once this is closed
}

func (h *hook) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var review struct{ Request struct{ UID string } }
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.asked.Add(1)
	select {
	case <-h.free:
	case <-req.Context().Done():
	}
	h.answered.Add(1)
	_, _ = fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":false,"status":{"message":"no further revision"}}}`, review.Request.UID)
}

// hooked gives a workspace the webhook, for an operation on a resource of workloads.
func (h *hook) hooked(t *testing.T, shop *kcptest.Cluster, operation admissionv1.OperationType, resource string) {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	_, err := kubernetes.NewForConfigOrDie(shop.Config).AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "hook"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "hook.example.com", FailurePolicy: new(admissionv1.Fail), SideEffects: new(admissionv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			TimeoutSeconds: new(int32(30)),
			ClientConfig:   admissionv1.WebhookClientConfig{URL: &s.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})},
			Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{operation},
				Rule: admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{resource}}}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// warnings returns the Events about the Deployment "web" of a workspace.
func (h *historian) warnings(t *testing.T) []corev1.Event {
	t.Helper()
	all, err := h.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Deployment,involvedObject.name=web,type=Warning"})
	if err != nil {
		t.Fatal(err)
	}
	return all.Items
}

// warned waits for an Event about the Deployment that has a text.
func (h *historian) warned(t *testing.T, text string) (found corev1.Event) {
	t.Helper()
	eventually(t, func() error {
		all := h.warnings(t)
		for _, found = range all {
			if strings.Contains(found.Message, text) {
				return nil
			}
		}
		return fmt.Errorf("the Events are %v", all)
	})
	return found
}

// TestRefusedRevisions expects that users learn from an Event why there is no revision, once for each.
func TestRefusedRevisions(t *testing.T) {
	_, shop := placing(t)
	h := historian{shop, kubernetes.NewForConfigOrDie(shop.Config)}
	h.shows(t, "1")
	web, err := h.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	shop.Apply(`
apiVersion: v1
kind: ResourceQuota
metadata: {name: few}
spec: {hard: {count/replicasets.apps: "1"}}
`)
	eventually(t, func() error {
		q, err := h.CoreV1().ResourceQuotas("default").Get(t.Context(), "few", metav1.GetOptions{})
		if err == nil && len(q.Status.Used) == 0 {
			err = fmt.Errorf("the quota counts nothing: %v", q.Status)
		}
		return err
	})
	h.image(t, "nginx:2")
	e := h.warned(t, "exceeded quota: few")
	if e.Reason != "ReplicaSetCreateError" || !strings.HasPrefix(e.Message, `Failed to create new replica set "web-`) || e.InvolvedObject.UID != web.UID || e.InvolvedObject.APIVersion != "apps/v1" {
		t.Errorf("the Event is %v", e)
	}
	if err := h.CoreV1().ResourceQuotas("default").Delete(t.Context(), "few", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	free := make(chan struct{})
	close(free)
	refuses := &hook{free: free}
	refuses.hooked(t, shop, admissionv1.Create, "replicasets")
	h.image(t, "nginx:3")
	e = h.warned(t, "no further revision")
	for n, before := 0, refuses.asked.Load(); n < 2; n++ { // the first retry has ended when the second one begins
		patch := fmt.Sprintf(`{"metadata":{"labels":{"retry":"%d"}}}`, n)
		if _, err := h.AppsV1().Deployments("default").Patch(t.Context(), "web", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			if now := refuses.asked.Load(); now < before+int32(n)+1 {
				return fmt.Errorf("the webhook was asked %d times", now)
			}
			return nil
		})
	}
	if all := h.warnings(t); len(all) != 2 {
		t.Errorf("there are %d Events: %v", len(all), all)
	}
	if again := h.warned(t, "no further revision"); again.ResourceVersion != e.ResourceVersion {
		t.Errorf("the Event was written again: %v", again)
	}
	if err := h.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "hook", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	h.image(t, "nginx:4")
	h.shows(t, "1", "2")
}

// TestSlowWebhooks expects that workspaces whose webhooks hang do not hold up others: neither their revisions, nor the
// decisions about them and their status.
func TestSlowWebhooks(t *testing.T) {
	for name, c := range map[string]struct {
		operation admissionv1.OperationType
		resource  string
		slow      int // workspaces, more than the loop has workers
	}{
		"revisions": {admissionv1.Create, "replicasets", 4},
		"decisions": {admissionv1.Update, "deployments", 10},
		"statuses":  {admissionv1.Update, "deployments/status", 10},
	} {
		t.Run(name, func(t *testing.T) {
			u, compute := registered(t)
			hangs := &hook{free: make(chan struct{})}
			defer close(hangs.free)
			for range c.slow {
				shop := consumer(t, u, compute)
				hangs.hooked(t, shop, c.operation, c.resource)
				shop.Apply(placement("all", ""))
				shop.Apply(deployment)
			}
			shop := consumer(t, u, compute)
			eventually(t, func() error {
				if n := hangs.asked.Load(); n == 0 {
					return fmt.Errorf("no webhook was asked")
				}
				return nil
			})
			shop.Apply(placement("all", ""))
			shop.Apply(deployment)
			placed(t, shop, true)
			says(t, shop, deployments(), "default", "web", "NoTarget")
			h := historian{shop, kubernetes.NewForConfigOrDie(shop.Config)}
			h.shows(t, "1")
			if n := hangs.answered.Load(); n > 0 {
				t.Errorf("%d webhooks had to answer first", n)
			}
		})
	}
}
