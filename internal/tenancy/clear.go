package tenancy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
)

const (
	// slice is how long one cluster's content is worked on before others have
	// their turn.
	slice = time.Second
	// atOnce is how many requests for one cluster are under way.
	atOnce = 16
	// purgeSize is how many objects are collected before they are deleted.
	purgeSize = 1000
)

// Delete deletes an object as a client would: one with finalizers stays, and says
// that it is being deleted.
type Delete func(context.Context, store.Item) error

// A stage is a part of the content of a cluster. It goes when nothing of the parts
// before it keeps the cluster any more.
type stage int

const (
	// ordinary content goes first.
	ordinary stage = iota
	// frames is what other content is in, or served from.
	frames
	// access is what controllers in the cluster need to do their part: they have
	// to act, and so to be let in, until the last of their finalizers is gone.
	access
	stages
)

func stageOf(r store.Resource) stage {
	switch {
	case r.Root == store.Native && r.Group == rbacv1.GroupName,
		r == native("", "serviceaccounts"), r == native("", "secrets"), r.Root == store.System:
		return access
	case r == native("", "namespaces"), r.Resource == "customresourcedefinitions" && r.Group == "apiextensions.k8s.io",
		r.Resource == "apibindings" && r.Group == "apis.kcp.io":
		return frames
	default:
		return ordinary
	}
}

// finalizersOfOurs are removed by the server itself, which here deletes all that
// they wait for.
func finalizersOfOurs(f string) bool {
	switch f {
	case metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents, // of garbage collection
		"customresourcecleanup.apiextensions.k8s.io", "apis.kcp.io/apibinding-finalizer", "cache.kcp.io/clustercachedresource":
		return true
	default:
		return false
	}
}

// A rest is what is left of a cluster's content, and why.
type rest struct {
	more    bool // to be deleted at once
	below   int  // workspaces
	blocked int  // objects that finalizers keep, of which first says more
	first   string
	waits   bool  // what is said first is that somebody has to finish
	failed  error // of a deletion that was refused
	// terminators have not finished.
	terminators []core.Terminator
}

func (r *rest) block(why string) {
	if r.blocked++; r.blocked == 1 {
		r.first = why
	}
}

func (r rest) condition() conditions.Condition {
	c := conditions.Condition{
		Type: core.WorkspaceContentDeleted, Status: metav1.ConditionFalse, Severity: conditions.SeverityInfo,
		Reason: SomeResourcesRemain, Message: "What the workspace contains is being deleted.",
	}
	if len(r.terminators) > 0 {
		c.Reason, c.Message = SomeTerminatorsRemain, unfinished(r.terminators)
	}
	switch {
	case r.blocked > 0 && r.waits:
		c.Reason, c.Message = SomeTerminatorsRemain, r.first
	case r.blocked > 0:
		c.Severity, c.Reason, c.Message = conditions.SeverityError, SomeFinalizersRemain, r.first
	}
	if r.failed != nil {
		c.Message += "; " + r.failed.Error()
	} else if r.blocked > 1 {
		c.Message += fmt.Sprintf("; so are %d more", r.blocked-1)
	}
	return c
}

// unfinished says which terminators have not finished.
func unfinished(terminators []core.Terminator) string {
	if len(terminators) == 1 {
		return fmt.Sprintf("terminator %s has not finished", terminators[0])
	}
	return fmt.Sprintf("terminators %v have not finished", terminators)
}

// errPause ends a sweep that is to go on later.
var errPause = errors.New("paused")

// clear deletes the content of a terminating cluster, all but its LogicalCluster,
// and returns what is left. If that is nothing, nothing is left in etcd.
func (w *Workspaces) clear(ctx context.Context, d *death, delete Delete) (rest, error) {
	c := d.cluster
	resources, err := w.Store.Remains(ctx, c)
	if err != nil {
		return rest{}, err
	}
	resources = slices.DeleteFunc(resources, func(r store.Resource) bool { return r == LogicalClusters() })
	work := &clearing{Workspaces: w, cluster: c, forced: d.forced, why: d.root.Annotations, delete: delete, until: time.Now().Add(slice)}
	if err := work.all(ctx, resources); err != nil && !errors.Is(err, errPause) {
		return rest{}, err
	}
	if left := work.left; left.more || left.blocked > 0 || left.below > 0 {
		return left, nil
	}
	n, err := w.Store.Count(ctx, c, resources...)
	return rest{more: n > 0}, err
}

// all goes through the content, the workspaces first: they may be served from here.
func (c *clearing) all(ctx context.Context, resources []store.Resource) error {
	if i := slices.Index(resources, c.Resource); i >= 0 {
		err := c.Store.Sweep(ctx, c.cluster, c.Resource, func(page []store.Item) error { return c.endChildren(ctx, page) })
		if err == nil {
			err = c.purge(ctx, ordinary)
		}
		if err != nil || c.left.more || c.left.below > 0 || c.left.blocked > 0 {
			return err
		}
		resources = slices.Delete(slices.Clone(resources), i, i+1)
	}
	for s := range stages {
		for _, r := range resources {
			if stageOf(r) != s {
				continue
			}
			if err := c.Store.Sweep(ctx, c.cluster, r, func(page []store.Item) error { return c.page(ctx, s, page) }); err != nil {
				return err
			}
		}
		if err := c.purge(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// A clearing is one go at the content of a cluster.
type clearing struct {
	*Workspaces
	cluster cluster.Name
	forced  bool              // finalizers keep nothing
	why     map[string]string // the annotations that say why
	delete  Delete
	until   time.Time
	left    rest
	doomed  []store.Item // to be purged
}

// endChildren begins to delete the workspaces that are not being deleted yet.
func (c *clearing) endChildren(ctx context.Context, page []store.Item) error {
	var alive []store.Item
	for _, item := range page {
		if c.child(item); !item.Metadata.Deleting || c.forced && !c.isForced(item) {
			alive = append(alive, item)
		}
	}
	if err := each(alive, func(item store.Item) error {
		for range retries {
			d, err := c.ofWorkspace(ctx, c.cluster, item.Name, true)
			if err != nil || d == nil {
				return err
			}
			if d.cluster == "" { // it never had one
				err = c.delete(ctx, item)
			} else {
				d.forced, d.above = c.forced, c.why
				_, err = c.condemn(ctx, d)
			}
			if !moved(err) {
				return err
			}
		}
		return nil
	}); err != nil || len(alive) == 0 {
		return err
	}
	return c.pause()
}

// pause ends this go if it has had its time. It is called after something was
// done, so that every go gets further than the one before.
func (c *clearing) pause() error {
	if time.Now().Before(c.until) {
		return nil
	}
	c.left.more = true
	return errPause
}

// child sorts out a workspace: it is in the way until its cluster is gone.
func (c *clearing) child(item store.Item) {
	row, _ := c.Tree.Child(c.cluster, item.Name)
	waitsFor := slices.DeleteFunc(slices.Clone(item.Metadata.Finalizers), finalizersOfOurs)
	switch {
	case row.Blocked != "" && !c.forced:
		if c.left.blocked == 0 {
			c.left.waits = row.Waits
		}
		c.left.block(fmt.Sprintf("in workspace %s, %s", item.Name, row.Blocked))
	case !item.Metadata.Deleting || slices.Contains(waitsFor, core.LogicalClusterFinalizer):
		c.left.below++
	case len(waitsFor) > 0 && !c.forced:
		c.left.block(keeps(item, waitsFor))
	default:
		c.doomed = append(c.doomed, item.Bare())
	}
}

// isForced reports whether the deletion of a workspace in the cluster is known to be
// forced.
func (c *clearing) isForced(item store.Item) bool {
	row, ok := c.Tree.Child(c.cluster, item.Name)
	return ok && row.Forced
}

// page sorts out what can be deleted at once and has the rest marked.
func (c *clearing) page(ctx context.Context, s stage, page []store.Item) error {
	var unmarked []store.Item
	for _, item := range page {
		waitsFor, err := finalizers(ctx, item)
		if err != nil {
			return err
		}
		if len(waitsFor) == 0 || c.forced {
			c.doomed = append(c.doomed, item.Bare())
			continue
		}
		c.left.block(keeps(item, waitsFor))
		if !item.Metadata.Deleting {
			unmarked = append(unmarked, item)
		}
	}
	var mu sync.Mutex
	if err := each(unmarked, func(item store.Item) error {
		err := c.mark(ctx, item)
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			c.left.failed = err
		}
		return ctx.Err()
	}); err != nil {
		return err
	}
	// Of the later stages nothing goes before it is known that all can.
	if s == ordinary && len(c.doomed) >= purgeSize {
		if err := c.purge(ctx, s); err != nil {
			return err
		}
		return c.pause()
	}
	return nil
}

// mark has an object deleted that somebody waits for.
func (c *clearing) mark(ctx context.Context, item store.Item) error {
	err := c.delete(ctx, item)
	switch {
	case apierrors.IsConflict(err): // another one by now, which is met again
		return nil
	case apierrors.IsNotFound(err):
		_, rev, rerr := c.Store.Metadata(ctx, item.Key)
		if rerr != nil || rev != item.Revision {
			return rerr
		}
		return errors.New("this server does not serve it, so that nobody can finish what its finalizers stand for; start a server that does")
	case err != nil:
		return fmt.Errorf("it cannot be deleted: %w", err)
	}
	return nil
}

// purge deletes what was collected of a stage, unless it has to stay because of
// what is left.
func (c *clearing) purge(ctx context.Context, s stage) error {
	doomed := c.doomed
	c.doomed = nil
	if len(doomed) == 0 || s > ordinary && (c.left.blocked > 0 || c.left.more) {
		return nil
	}
	n, err := c.Store.Purge(ctx, c.cluster, doomed)
	c.left.more = c.left.more || n < len(doomed)
	return err
}

// each calls f for items, several at once, and returns the first error.
func each(items []store.Item, f func(store.Item) error) error {
	queue := make(chan store.Item)
	errs := make(chan error, len(items))
	var workers sync.WaitGroup
	for range min(atOnce, len(items)) {
		workers.Go(func() {
			for item := range queue {
				errs <- f(item)
			}
		})
	}
	for _, item := range items {
		queue <- item
	}
	close(queue)
	workers.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// finalizers returns those that somebody else has to remove from an object.
func finalizers(ctx context.Context, item store.Item) ([]string, error) {
	all := slices.DeleteFunc(slices.Clone(item.Metadata.Finalizers), finalizersOfOurs)
	if item.Resource != native("", "namespaces") {
		return all, nil
	}
	o, err := item.Object(ctx)
	if err != nil {
		return all, nil //nolint:nilerr // what cannot be read has nothing to wait for
	}
	ns, err := asNamespace(o)
	if err != nil {
		return nil, err
	}
	for _, f := range ns.Spec.Finalizers {
		if f != corev1.FinalizerKubernetes {
			all = append(all, string(f))
		}
	}
	return all, nil
}

func asNamespace(o runtime.Object) (*corev1.Namespace, error) {
	if ns, ok := o.(*corev1.Namespace); ok {
		return ns, nil
	}
	ns := &corev1.Namespace{}
	return ns, legacyscheme.Scheme.Convert(o, ns, nil)
}

// keeps says that finalizers keep an object.
func keeps(item store.Item, finalizers []string) string {
	name := item.Name
	if item.Namespace != "" {
		name = item.Namespace + "/" + name
	}
	return fmt.Sprintf("%s %s is kept by %s", item.GroupResource(), name, listed(finalizers))
}

func listed(finalizers []string) string {
	if len(finalizers) == 1 {
		return "finalizer " + finalizers[0]
	}
	return fmt.Sprintf("finalizers %v", finalizers)
}
