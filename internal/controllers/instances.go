package controllers

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/values"
)

// deletionsAtOnce limits the concurrent deletions of instances of one resource.
const deletionsAtOnce = 16

// instances are the objects of a cluster whose resource ends with its definition or binding.
type instances struct {
	deps    Deps
	cluster cluster.Name
	forced  bool // delete corrupt instances

	mu         sync.Mutex
	unreadable bool // an instance could not be read
}

// empty deletes the instances without finalizers, and returns a message about one of the
// others. It deletes them in the store, because a request to delete the collection would
// fail if one of them cannot be read.
func (i *instances) empty(ctx context.Context, r keys.Resource) (left string, err error) {
	err = i.deps.Store.Sweep(ctx, i.cluster, r, func(page []store.Item) error {
		var mu sync.Mutex
		var wg sync.WaitGroup
		var failed error
		places := make(chan struct{}, deletionsAtOnce)
		for _, item := range page {
			places <- struct{}{}
			wg.Go(func() {
				defer func() { <-places }()
				why, err := i.delete(ctx, item)
				mu.Lock()
				defer mu.Unlock()
				if failed == nil {
					failed = err
				}
				if left == "" {
					left = why
				}
			})
		}
		wg.Wait()
		return failed
	})
	return left, err
}

// delete deletes one instance, or returns the reason why it stays.
func (i *instances) delete(ctx context.Context, item store.Item) (why string, err error) {
	if item.Err != nil && !(i.forced && values.IsCorrupt(item.Err)) { // it may have finalizers
		i.mu.Lock()
		i.unreadable = true
		i.mu.Unlock()
		why = fmt.Sprintf("%s cannot be read: %v", objectName(item.Key), item.Err)
		if values.IsCorrupt(item.Err) {
			why += "; only a forced deletion removes it"
		}
		return why, nil
	}
	if len(item.Metadata.Finalizers) == 0 {
		_, err := i.deps.Store.Commit(ctx, []store.Write{{
			Resource: item.Resource, Cluster: item.Cluster, Expect: item.Revision, Delete: true,
			Object: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: item.Namespace, Name: item.Name}},
		}})
		return "", untilChange(err)
	}
	if !item.Metadata.Deleting {
		kind, ok := i.deps.Kinds.StoredAs(item.Cluster, item.Resource)
		if !ok {
			return "", fmt.Errorf("%s is not served", item.Key)
		}
		o := object{key: item.Key, uid: item.Metadata.UID, kind: kind, deps: i.deps}
		if err := o.remove(ctx, metav1.DeletePropagationBackground, 0); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%s is kept by finalizers %v", objectName(item.Key), item.Metadata.Finalizers), nil
}

func objectName(k keys.Key) string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}
