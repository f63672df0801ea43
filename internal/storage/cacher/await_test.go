package cacher

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/fair"
)

// A request that waits for a revision of the cache holds no processor. Clients may name any revision.
func TestReadsWaitWithoutASeat(t *testing.T) {
	s := open(t, "c1")
	last := create(t, s, "first", "")
	g := New(s, func() int64 { return 0 })
	g.readWait = time.Hour
	c := start(t, s, g)
	if err := c.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	shares := fair.New(fair.Limits{Light: 1, LightEach: 1, Heavy: 1, HeavyEach: 1, Waiting: 5, Timeout: time.Minute})
	begin := func(tenant string) (context.Context, *fair.Work) {
		w := shares.Begin()
		w.For(tenant)
		ctx := fair.With(cluster.With(t.Context(), "c1"), w)
		if err := w.Compute(ctx, fair.Light); err != nil {
			t.Fatal(err)
		}
		return ctx, w
	}
	yes, key := true, configMaps.Prefix()
	for name, read := range map[string]func(context.Context, string) error{
		"get": func(ctx context.Context, next string) error {
			return c.Get(ctx, key+"/c1/ns/first", storage.GetOptions{ResourceVersion: next}, &corev1.ConfigMap{})
		},
		"list": func(ctx context.Context, next string) error {
			return c.GetList(ctx, key, storage.ListOptions{ResourceVersion: next, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, Recursive: true, Predicate: storage.Everything}, &corev1.ConfigMapList{})
		},
		"watch that begins with a list": func(ctx context.Context, next string) error {
			w, err := c.Watch(ctx, key, storage.ListOptions{ResourceVersion: next, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, SendInitialEvents: &yes, Recursive: true, Predicate: storage.Everything})
			if err != nil {
				return err
			}
			defer w.Stop()
			e := <-w.ResultChan()
			if e.Type == watch.Error {
				err = apierrors.FromObject(e.Object)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, waits := begin("waiting")
			answer := make(chan error, 1)
			go func() {
				defer waits.End()
				answer <- read(ctx, strconv.FormatInt(last+1, 10))
			}()
			_, other := begin("other") // once the first has given up its seat
			other.End()
			last = create(t, s, strings.ReplaceAll(name, " ", "-"), "")
			if err := <-answer; err != nil {
				t.Error(err)
			}
		})
	}
	g.readWait = time.Millisecond
	o := storage.GetOptions{ResourceVersion: strconv.FormatInt(last+1, 10)}
	if err := c.Get(cluster.With(t.Context(), "c1"), key+"/c1/ns/first", o, &corev1.ConfigMap{}); !storage.IsTooLargeResourceVersion(err) {
		t.Errorf("error %v, want that the revision does not come", err)
	}
}
