package deletion

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
)

const (
	// deletionsAtOnce limits the concurrent deletions of instances of one resource.
	deletionsAtOnce = 16
	// instancesAgain is the retry interval for remaining instances, for obstacles whose end
	// causes no event.
	instancesAgain = time.Minute
	// unreadableAgain is the retry interval for unreadable instances.
	unreadableAgain = 5 * time.Second
)

// Instances are the objects in a store whose resource ends with its definition or binding. All
// fields but Last are required.
type Instances struct {
	Store *store.Store
	Kinds *catalog.Kinds
	// Client returns the configuration of clients with all rights in one cluster.
	Client func(cluster.Name) *rest.Config
	// Last are the resources whose objects are deleted after all others of a binding.
	Last []schema.GroupResource
}

// A sweep deletes the instances in one cluster.
type sweep struct {
	Instances
	cluster cluster.Name
	forced  bool // delete corrupt instances

	mu         sync.Mutex
	unreadable bool // an instance could not be read
}

// empty deletes the instances without finalizers, and returns a message about one of the
// others. It deletes them in the store, because a request to delete the collection would
// fail if one of them cannot be read.
func (s *sweep) empty(ctx context.Context, r keys.Resource) (left string, err error) {
	err = s.Store.Sweep(ctx, s.cluster, r, func(page []store.Item) error {
		var mu sync.Mutex
		var wg sync.WaitGroup
		var failed error
		places := make(chan struct{}, deletionsAtOnce)
		for _, item := range page {
			places <- struct{}{}
			wg.Go(func() {
				defer func() { <-places }()
				why, err := s.delete(ctx, item)
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
func (s *sweep) delete(ctx context.Context, item store.Item) (why string, err error) {
	if item.Err != nil && !(s.forced && values.IsCorrupt(item.Err)) { // it may have finalizers
		s.mu.Lock()
		s.unreadable = true
		s.mu.Unlock()
		why = fmt.Sprintf("%s cannot be read: %v", objectName(item.Key), item.Err)
		if values.IsCorrupt(item.Err) {
			why += "; only a forced deletion removes it"
		}
		return why, nil
	}
	if len(item.Metadata.Finalizers) == 0 {
		_, err := s.Store.Commit(ctx, []store.Write{{
			Resource: item.Resource, Cluster: item.Cluster, Expect: item.Revision, Delete: true,
			Object: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: item.Namespace, Name: item.Name}},
		}})
		return "", trigger.UntilChange(err)
	}
	if !item.Metadata.Deleting {
		kind, ok := s.Kinds.StoredAs(item.Cluster, item.Resource)
		if !ok {
			return "", fmt.Errorf("%s is not served", item.Key)
		}
		if err := remove(ctx, s.Client, kind.GroupVersionResource(), item); err != nil && !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("delete %s: %w", item.Key, err)
		}
	}
	return fmt.Sprintf("%s is kept by finalizers %v", objectName(item.Key), item.Metadata.Finalizers), nil
}

// again returns when to sweep the remaining instances again.
func (s *sweep) again() error {
	if s.unreadable {
		return control.After(unreadableAgain)
	}
	return control.After(instancesAgain)
}

func objectName(k keys.Key) string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}
