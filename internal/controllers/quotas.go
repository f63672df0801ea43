package controllers

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/quota/limits"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
)

// The status of a ResourceQuota is written once in quotaStatusEvery at most. Each of its limits adds
// quotaLimitEvery to that interval. The store does not read the status: it has its own counters.
const (
	quotaStatusEvery = 200 * time.Millisecond
	quotaLimitEvery  = 20 * time.Millisecond
)

// Quotas keeps the status of ResourceQuotas: limits and what is used of them.
func Quotas(d Deps) control.Loop {
	counted := &countedQuotas{Inbox: trigger.New(func() []control.Key { return trigger.Keys(d.Quotas.Table().Keys()) }), of: d.Quotas}
	d.Store.Feed().Follow(counted)
	written := &control.Intervals{}
	return control.Loop{
		Name: "resource-quotas",
		On:   d.on(counted.Subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			q, ok := d.Quotas.Table().Get(k.Cluster, k.Namespace, k.Name)
			if !ok {
				return nil
			}
			if wait := written.Wait(k, time.Now()); wait > 0 {
				return control.After(wait)
			}
			used := corev1.ResourceList{}
			for _, h := range q.Hard {
				switch {
				case h.Counts:
					n, err := d.Quotas.Used(ctx, k.Cluster, h.Subject)
					if err != nil {
						return err
					}
					used[h.Name] = *resource.NewQuantity(n, resource.DecimalSI)
				case !limits.Uncounted(h.GroupResource):
					used[h.Name] = *resource.NewQuantity(0, resource.DecimalSI)
				}
			}
			return d.showUsed(ctx, k, used, written)
		},
	}
}

// showUsed writes the status of a ResourceQuota, unless it is right.
func (d Deps) showUsed(ctx context.Context, k control.Key, used corev1.ResourceList, written *control.Intervals) error {
	client, err := typedcorev1.NewForConfig(d.Client(k.Cluster))
	if err != nil {
		return err
	}
	quotas := client.ResourceQuotas(k.Namespace)
	q, err := quotas.Get(ctx, k.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	status := corev1.ResourceQuotaStatus{Hard: q.Spec.Hard, Used: used}
	if equality.Semantic.DeepEqual(q.Status, status) || q.DeletionTimestamp != nil {
		return nil
	}
	q.Status = status
	if _, err = quotas.UpdateStatus(ctx, q, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
		return nil
	}
	written.Begin(k, time.Now(), quotaStatusEvery+time.Duration(len(q.Spec.Hard))*quotaLimitEvery)
	return err
}

// countedQuotas finds the ResourceQuotas whose use changes.
type countedQuotas struct {
	*trigger.Inbox
	of *limits.Quotas

	reading bool
}

// Reset implements [feed.Follower].
func (f *countedQuotas) Reset() { f.reading = true }

// Apply implements [feed.Follower].
func (f *countedQuotas) Apply(e feed.Event) {
	if f.reading {
		return
	}
	if e.Key.Resource == limits.ResourceQuotas() {
		if e.Deleted() {
			f.of.Forget(e.Key.Cluster)
		} else {
			f.Put(trigger.Key(e.Key))
		}
	}
	if e.Key.Root == keys.System || !e.Deleted() && e.Previous != nil {
		return
	}
	for _, q := range f.of.Counting(e.Key) {
		if q.Counts(e.Key.GroupResource()) {
			f.Put(control.Key{Cluster: e.Key.Cluster, Namespace: q.Namespace, Name: q.Name})
		}
	}
}

// Done implements [feed.Follower].
func (f *countedQuotas) Done() {
	f.reading = false
	f.PutAll()
}
