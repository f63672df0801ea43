package server_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Clients with compiled-in types write defined Pods as they write built-in ones: in protobuf,
// and with strategic merge patches, which match list elements by key.
func TestClientsOfKnownKinds(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	d := c.newKind(coreCRD(t, "pods", schemaOf(`{type: object, properties: {
		spec: {type: object, properties: {nodeName: {type: string}, extra: {type: string, default: d}, containers: {type: array, items: {type: object, properties: {name: {type: string}, image: {type: string}}}}}},
		status: {type: object, properties: {phase: {type: string}}}}}`, "subresources: {status: {}}")))
	pods := c.kube.CoreV1().Pods("default")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "one"}}}}
	pod = must(pods.Create(t.Context(), pod, metav1.CreateOptions{}))(t)
	if pod.Spec.Containers[0].Image != "one" || pod.UID == "" {
		t.Errorf("created %v", pod)
	}
	pod.Spec.NodeName = "n"
	pod = must(pods.Update(t.Context(), pod, metav1.UpdateOptions{}))(t)
	pod.Status.Phase = corev1.PodRunning
	if pod = must(pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}))(t); pod.Status.Phase != corev1.PodRunning || pod.Spec.NodeName != "n" {
		t.Errorf("updated to %v", pod)
	}
	patch := func(p string, sub ...string) error {
		_, err := pods.Patch(t.Context(), "p", types.StrategicMergePatchType, []byte(p), metav1.PatchOptions{FieldManager: "patcher"}, sub...)
		return err
	}
	for p, sub := range map[string][]string{`{"spec":{"containers":[{"name":"b","image":"two"}]}}`: nil, `{"metadata":{"labels":{"l":"v"}}}`: nil, `{"status":{"phase":"Failed"}}`: {"status"}} {
		if err := patch(p, sub...); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
	o := must(c.of(d).Get(t.Context(), "p", metav1.GetOptions{}))(t)
	if text(o, "spec", "containers") != "[map[image:two name:b] map[image:one name:a]]" || text(o, "spec", "extra") != "d" || text(o, "status", "phase") != "Failed" || o.GetLabels()["l"] != "v" {
		t.Errorf("patched: %v", o)
	}
	if !slices.ContainsFunc(o.GetManagedFields(), func(f metav1.ManagedFieldsEntry) bool { return f.Manager == "patcher" && f.Subresource == "status" }) {
		t.Errorf("managed by %v", o.GetManagedFields())
	}
	if err := patch(`{"spec":{"containers":[{"name":"a","$patch":"delete"}]}}`); err != nil {
		t.Error(err)
	}
	if o = must(c.of(d).Get(t.Context(), "p", metav1.GetOptions{}))(t); text(o, "spec", "containers") != "[map[image:two name:b]]" {
		t.Errorf("an element was not taken out: %v", o)
	}
	for p, refused := range map[string]func(error) bool{
		`{"metadata":{"resourceVersion":"1"}}`: apierrors.IsConflict, `{"metadata":{"uid":"other"}}`: apierrors.IsConflict, `{"metadata":{"name":"q"}}`: apierrors.IsBadRequest,
		`{"spec":{"containers":7}}`: apierrors.IsInvalid, `{"spec":{"containers":[{"$patch":"nonsense"}]}}`: apierrors.IsBadRequest, `[]`: apierrors.IsBadRequest, `{`: apierrors.IsBadRequest,
	} {
		if err := patch(p); err == nil || !refused(err) {
			t.Errorf("%s: %v", p, err)
		}
	}
	if _, err := pods.Patch(t.Context(), "none", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a patch of none: %v", err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if err := patch(fmt.Sprintf(`{"metadata":{"labels":{"w%d":"v"}}}`, i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if o = must(c.of(d).Get(t.Context(), "p", metav1.GetOptions{}))(t); len(o.GetLabels()) != 9 {
		t.Errorf("patched by eight at a time: %v", o.GetLabels())
	}
	v := c.owner()
	const all, protobuf = "/api/v1/namespaces/default/pods", "application/vnd.kubernetes.protobuf"
	for name, tc := range map[string]struct {
		method, path, body, media string
		code                      int
	}{
		"nothing":     {"POST", all, "", protobuf, 422},
		"no object":   {"POST", all, "k8s\x00\x0a\x00", protobuf, 422},
		"nonsense":    {"PUT", all + "/p", "k8s\x00\xff\xff\xff", protobuf, 400},
		"too large":   {"POST", all, strings.Repeat("x", 4<<20), protobuf, 413},
		"large patch": {"PATCH", all + "/p", strings.Repeat("x", 4<<20), string(types.StrategicMergePatchType), 413},
		"of a scale":  {"PATCH", all + "/p/scale", "{}", string(types.StrategicMergePatchType), 404},
	} {
		a := v.send(tc.method, c.path(tc.path), tc.body, "Content-Type", tc.media)
		for a.code == http.StatusTooManyRequests { // the other tests keep the server busy
			a = v.send(tc.method, c.path(tc.path), tc.body, "Content-Type", tc.media)
		}
		if a.code != tc.code {
			t.Errorf("%s: %d %.300s", name, a.code, a.body)
		}
	}
}
