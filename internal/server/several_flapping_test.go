package server_test

import (
	"fmt"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/storage/etcdtest"
)

// While etcd stops again and again, writes are acknowledged or fail with errors that clients
// retry. No acknowledged write is missing in a list or in an open watch.
func TestFlappingEtcd(t *testing.T) {
	t.Parallel() // it mostly waits
	e := startEquals(t, 1, etcdtest.Options{})
	kube := e.kube(e.all[0], string(e.workspace(e.all[0], "root", "w")), server.System()).CoreV1().ConfigMaps("default")
	w := must(kube.Watch(t.Context(), metav1.ListOptions{LabelSelector: "flapping"}))(t)
	defer w.Stop()
	flapped := make(chan struct{})
	go func() {
		defer close(flapped)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for range 5 {
			e.etcd.Members[0].Hang()
			<-tick.C
			e.etcd.Members[0].Resume()
			<-tick.C
		}
	}()
	made := map[string]bool{}
	for over := false; !over; {
		select {
		case <-flapped:
			over = true // the next write is without faults
		default:
		}
		name := fmt.Sprint("m", len(made))
		_, err := kube.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"flapping": "yes"}}}, metav1.CreateOptions{})
		switch {
		case err == nil, apierrors.IsAlreadyExists(err):
			made[name] = true
		case !apierrors.IsServiceUnavailable(err) && !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err):
			t.Errorf("%s: %v", name, err)
		}
	}
	listed := map[string]bool{}
	for _, m := range must(kube.List(t.Context(), metav1.ListOptions{LabelSelector: "flapping"}))(t).Items {
		listed[m.Name] = true
	}
	if !maps.Equal(listed, made) {
		t.Errorf("listed %v, made %v", listed, made)
	}
	for left := maps.Clone(made); len(left) > 0; {
		event, ok := <-w.ResultChan()
		m, is := event.Object.(*corev1.ConfigMap)
		if !ok || !is {
			t.Fatalf("the watch ended with %v, without %v", event, left)
		}
		delete(left, m.Name)
	}
}
