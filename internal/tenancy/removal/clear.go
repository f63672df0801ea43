package removal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apis "github.com/unforked/kcp/apis/apis/v1alpha1"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

const (
	// slice is the time for which a worker deletes the content of one cluster before it
	// continues with another one.
	slice = time.Second
	// atOnce limits the concurrent requests for one cluster.
	atOnce = 16
	// purgeSize is the number of objects that are collected before they are deleted.
	purgeSize = 1000
)

// Delete deletes an object as a client would. An object with finalizers stays, marked as
// being deleted.
type Delete func(context.Context, store.Item) error

// A stage is a part of the content of a cluster. It is deleted once no object of an earlier
// stage blocks the deletion.
type stage int

const (
	// ordinary content is deleted first.
	ordinary stage = iota
	// afterOrdinary are the objects of the resources in [Remover.DeletedLast].
	afterOrdinary
	// frames are objects that contain or define other content. Exports define that of other
	// clusters: a provider that cleans up in those reaches it through its exports.
	frames
	// access is RBAC, service accounts, secrets, leases and objects of the system. Controllers in
	// the cluster need them until they have removed the last of their finalizers. It is also
	// the webhooks and policies, which may refuse the deletion of other content.
	access
	stages
)

// native returns a resource of the core group.
func native(resource string) keys.Resource { return keys.NativeResource(corev1.Resource(resource)) }

func (r *Remover) stageOf(of keys.Resource) stage {
	switch {
	case slices.Contains(r.DeletedLast, of.GroupResource()):
		return afterOrdinary
	case of.Root == keys.Native && (of.Group == rbacv1.GroupName || of.Group == admissionregistrationv1.GroupName),
		of == native("serviceaccounts"), of == native("secrets"), of == keys.NativeResource(coordinationv1.Resource("leases")), of.Root == keys.System:
		return access
	case of == native("namespaces"), of.Resource == "customresourcedefinitions" && of.Group == "apiextensions.k8s.io", isExport(of):
		return frames
	default:
		return ordinary
	}
}

// isExport reports whether objects of a resource are exports, bindings or parts of these.
func isExport(r keys.Resource) bool { return r.Group == "apis.kcp.io" }

// isServerFinalizer reports whether the server itself removes a finalizer. The deletion of
// the cluster removes all objects for which these finalizers wait.
func isServerFinalizer(f string) bool {
	switch f {
	case metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents, // of garbage collection
		"customresourcecleanup.apiextensions.k8s.io", "apis.kcp.io/apibinding-finalizer", "cache.kcp.io/clustercachedresource":
		return true
	default:
		return false
	}
}

// A rest is the remaining content of a cluster, and why it remains.
type rest struct {
	more    bool   // objects can be deleted at once
	below   int    // number of workspaces in the cluster
	blocked int    // number of objects that cannot be deleted yet
	first   string // message about the first blocked object
	reason  string // condition reason of the first blocked object
	failed  error  // of a refused deletion
	// unreadable is the error of the first unreadable object.
	unreadable error
	// terminators are the unfinished ones.
	terminators []core.Terminator
}

// waiting reports whether terminators or finalizers of clients block the deletion.
func (r rest) waiting() bool { return len(r.terminators) > 0 || r.blocked > 0 }

// block counts an object that cannot be deleted yet, and keeps the first message.
func (r *rest) block(reason, message string) {
	if r.blocked++; r.blocked == 1 {
		r.reason, r.first = reason, message
	}
}

func (r rest) condition() conditions.Condition {
	c := conditions.Condition{
		Type: core.WorkspaceContentDeleted, Status: metav1.ConditionFalse, Severity: conditions.SeverityInfo,
		Reason: tree.SomeResourcesRemain, Message: "The content of the workspace is being deleted.",
	}
	if len(r.terminators) > 0 {
		c.Reason, c.Message = tree.SomeTerminatorsRemain, unfinished(r.terminators)
	}
	switch {
	case r.blocked > 0 && r.reason == tree.SomeTerminatorsRemain:
		c.Reason, c.Message = r.reason, r.first
	case r.blocked > 0:
		c.Severity, c.Reason, c.Message = conditions.SeverityError, r.reason, r.first
	}
	if r.failed != nil {
		c.Message += "; " + r.failed.Error()
	} else if r.blocked > 1 {
		c.Message += "; and " + more(r.blocked-1)
	}
	return c
}

// more returns the text for n objects that the message does not name.
func more(n int) string {
	if n == 1 {
		return "1 more object"
	}
	return fmt.Sprintf("%d more objects", n)
}

// unfinished returns the message about unfinished terminators.
func unfinished(terminators []core.Terminator) string {
	if len(terminators) == 1 {
		return fmt.Sprintf("terminator %s has not finished", terminators[0])
	}
	return fmt.Sprintf("terminators %v have not finished", terminators)
}

// errPause ends a sweep that continues later.
var errPause = errors.New("paused")

// clear deletes the content of a terminating cluster, except its LogicalCluster, and
// returns the rest.
func (r *Remover) clear(ctx context.Context, d *deletion, delete Delete) (rest, error) {
	c := d.Cluster
	resources, err := r.Workspaces.Store.Remains(ctx, c)
	if err != nil {
		return rest{}, err
	}
	resources = slices.DeleteFunc(resources, func(r keys.Resource) bool { return r == tree.LogicalClusters() })
	work := &clearing{Remover: r, cluster: c, forced: d.forced, why: d.Root.Annotations, delete: delete, until: time.Now().Add(slice)}
	if err := work.all(ctx, resources); err != nil && !errors.Is(err, errPause) {
		return rest{}, err
	}
	if left := work.left; left.more || left.blocked > 0 || left.below > 0 {
		return left, nil
	}
	n, err := r.Workspaces.Store.Count(ctx, c, resources...)
	return rest{more: n > 0}, err
}

// all deletes the content by stages, after the workspaces in the cluster: other objects of
// the cluster may serve these.
func (c *clearing) all(ctx context.Context, resources []keys.Resource) error {
	if i := slices.Index(resources, c.Workspaces.Resource); i >= 0 {
		err := c.Workspaces.Store.Sweep(ctx, c.cluster, c.Workspaces.Resource, func(page []store.Item) error { return c.endChildren(ctx, page) })
		if err == nil {
			err = c.purge(ctx, ordinary)
		}
		if err != nil || c.left.more || c.left.below > 0 || c.left.blocked > 0 {
			return err
		}
		resources = slices.Delete(slices.Clone(resources), i, i+1)
	}
	for s := range stages {
		c.waits = c.obstructed(s)
		for _, r := range resources {
			if c.stageOf(r) != s {
				continue
			}
			if err := c.Workspaces.Store.Sweep(ctx, c.cluster, r, func(page []store.Item) error { return c.page(ctx, s, page) }); err != nil {
				return err
			}
		}
		if err := c.purge(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// A clearing is one pass over the content of a cluster.
type clearing struct {
	*Remover
	cluster cluster.Name
	forced  bool              // finalizers are ignored
	why     map[string]string // annotations with the reason of a forced deletion
	delete  Delete
	until   time.Time
	left    rest
	waits   bool         // objects of earlier stages are left
	doomed  []store.Item // to be purged
	asked   []store.Item // of later stages, to be deleted through the API
	// rollouts is the number of blocked rollouts without finalizers of clients.
	rollouts int
}

// endChildren starts the deletion of the workspaces that are not being deleted yet.
func (c *clearing) endChildren(ctx context.Context, page []store.Item) error {
	var alive []store.Item
	for _, item := range page {
		if !c.readable(item, item.Err) {
			continue
		}
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
			if d.Cluster == "" { // mounted, or without a cluster of its own
				err = c.delete(ctx, item)
			} else {
				d.forced, d.above = c.forced, c.why
				_, err = c.markDeleted(ctx, d)
			}
			if !tenancy.Moved(err) {
				return err
			}
		}
		return nil
	}); err != nil || len(alive) == 0 {
		return err
	}
	return c.pause()
}

// pause returns errPause after the time slice of this pass. It is called after some
// progress, so every pass makes progress.
func (c *clearing) pause() error {
	if time.Now().Before(c.until) {
		return nil
	}
	c.left.more = true
	return errPause
}

// readable reports whether the finalizers of an object are known. Unreadable objects may
// have finalizers, so they block the deletion. A forced deletion purges corrupt objects,
// which no server can ever read.
func (c *clearing) readable(item store.Item, err error) bool {
	switch {
	case err == nil:
		return true
	case c.forced && values.IsCorrupt(err):
		c.doomed = append(c.doomed, item.Bare())
		return false
	}
	message := fmt.Sprintf("%s %s cannot be read: %v", item.GroupResource(), named(item), err)
	if values.IsCorrupt(err) {
		message += "; only a forced deletion removes it"
	}
	c.left.block(tree.SomeObjectsUnreadable, message)
	if c.left.unreadable == nil {
		c.left.unreadable = fmt.Errorf("%s: %w", item.Key, err)
	}
	return false
}

// child handles a workspace in the cluster. It blocks the deletion until its cluster is
// deleted and clients have removed their finalizers from it.
func (c *clearing) child(item store.Item) {
	row, _ := c.Workspaces.Tree.Child(c.cluster, item.Name)
	foreign := foreignFinalizers(item.Metadata.Finalizers)
	switch {
	case len(foreign) > 0 && !c.forced:
		c.left.block(tree.SomeFinalizersRemain, keeps(item, foreign))
	case row.Blocked != "" && (!c.forced || row.Reason == tree.SomeObjectsUnreadable):
		c.left.block(row.Reason, fmt.Sprintf("in workspace %s, %s", item.Name, row.Blocked))
	case !item.Metadata.Deleting || slices.Contains(item.Metadata.Finalizers, core.LogicalClusterFinalizer):
		c.left.below++
	default:
		c.doomed = append(c.doomed, item.Bare())
	}
}

// isForced reports whether the tree has the forced deletion of a workspace in the cluster.
func (c *clearing) isForced(item store.Item) bool {
	row, ok := c.Workspaces.Tree.Child(c.cluster, item.Name)
	return ok && row.Forced
}

// page collects the objects of a page that can be deleted at once, and marks the others as
// being deleted.
func (c *clearing) page(ctx context.Context, s stage, page []store.Item) error {
	var unmarked, asked []store.Item
	for _, item := range page {
		waitsFor, err := finalizers(ctx, item)
		if !c.readable(item, err) {
			continue
		}
		if free := len(waitsFor) == 0 || c.forced; free && c.hooked(item) {
			asked = append(asked, item)
			continue
		} else if free {
			c.doomed = append(c.doomed, item.Bare())
			continue
		}
		c.left.block(tree.SomeFinalizersRemain, keeps(item, waitsFor))
		if isExport(item.Resource) && slices.Equal(waitsFor, []string{apis.RolloutFinalizer}) {
			c.rollouts++
		}
		// An export whose deletion has begun may not be of use any more.
		if !item.Metadata.Deleting && !(c.waits && isExport(item.Resource)) {
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
	// Objects of later stages are deleted only if all of them can be.
	if s > ordinary {
		c.asked = append(c.asked, asked...)
		return nil
	}
	if err := c.ask(ctx, asked); err != nil {
		return err
	}
	if len(c.doomed) >= purgeSize {
		if err := c.purge(ctx, s); err != nil {
			return err
		}
		return c.pause()
	}
	return nil
}

// mark deletes an object that has finalizers to wait for.
func (c *clearing) mark(ctx context.Context, item store.Item) error {
	err := c.delete(ctx, item)
	switch {
	case apierrors.IsConflict(err): // another object by now, which the next pass handles
		return nil
	case apierrors.IsNotFound(err):
		_, rev, rerr := c.Workspaces.Store.Metadata(ctx, item.Key)
		if rerr != nil || rev != item.Revision {
			return rerr
		}
		return errors.New("this server does not serve its kind, so its finalizers cannot be removed; start a server that serves it")
	case err != nil:
		return fmt.Errorf("it cannot be deleted: %w", err)
	}
	return nil
}

// purge deletes the collected objects of a stage. The rest blocks that of later stages.
func (c *clearing) purge(ctx context.Context, s stage) error {
	asked := c.asked
	c.asked = nil
	if s > ordinary && !c.obstructed(s) {
		if err := c.ask(ctx, asked); err != nil {
			return err
		}
	}
	doomed := c.doomed
	c.doomed = nil
	if len(doomed) == 0 || s > ordinary && c.obstructed(s) {
		return nil
	}
	n, err := c.Workspaces.Store.Purge(ctx, c.cluster, doomed)
	c.left.more = c.left.more || n < len(doomed)
	return err
}

// obstructed reports whether objects must be deleted before those of a stage. Rollouts obstruct no export: they
// keep the schemas of its consumers while it exists.
func (c *clearing) obstructed(s stage) bool {
	blocked := c.left.blocked
	if s <= frames {
		blocked -= c.rollouts
	}
	return blocked > 0 || c.left.more
}

// each calls f for all items concurrently, and returns one of the errors.
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

// finalizers returns the finalizers of an object that the server does not remove itself.
func finalizers(ctx context.Context, item store.Item) ([]string, error) {
	if item.Err != nil {
		return nil, item.Err
	}
	all := slices.DeleteFunc(slices.Clone(item.Metadata.Finalizers), isServerFinalizer)
	if item.Resource != native("namespaces") {
		return all, nil
	}
	o, err := item.Object(ctx)
	if err != nil {
		return nil, err
	}
	ns, err := tenancy.Native[corev1.Namespace](o)
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

// keeps returns the message that finalizers block the deletion of an object.
func keeps(item store.Item, finalizers []string) string {
	return keptBy(fmt.Sprintf("%s %s", item.GroupResource(), named(item)), finalizers)
}

func keptBy(what string, finalizers []string) string {
	return fmt.Sprintf("%s is kept by %s", what, listed(finalizers))
}

func named(item store.Item) string {
	if item.Namespace == "" {
		return item.Name
	}
	return item.Namespace + "/" + item.Name
}

func listed(finalizers []string) string {
	if len(finalizers) == 1 {
		return "finalizer " + finalizers[0]
	}
	return fmt.Sprintf("finalizers %v", finalizers)
}
