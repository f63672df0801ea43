package evolve

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	runtimeschema "k8s.io/apimachinery/pkg/runtime/schema"

	apis "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/storage/store"
)

// Maxima of the lists in a status. Counts have no maximum.
const (
	maxObjects = 100
	maxCauses  = 100
)

// A walk is one part of a check.
type walk struct {
	*Checker
	request Request
	limit   int64
	until   time.Time
	status  *apis.APIExportCheckStatus
	causes  map[causeKey]int // in status.Causes
	uses    map[useKey]*apis.VersionUse
}

// walk checks the objects of a target after a place. It returns the place of the last one, and
// whether that was the last of all.
func (w *walk) walk(ctx context.Context, t *target, at store.Place) (_ store.Place, done bool, err error) {
	for {
		i, found := slices.BinarySearchFunc(t.consumers, at.Cluster, byCluster)
		switch {
		case i == len(t.consumers):
			return at, true, nil
		case !found:
			at = store.Place{Cluster: t.consumers[i].Cluster}
		}
		if w.over(ctx) {
			return at, false, ctx.Err()
		}
		page, more, err := w.Store.Page(ctx, t.stored, at, min(pageSize, w.limit-w.status.Checked))
		if err != nil {
			return at, false, err
		}
		var all bool
		if at, all, err = w.page(ctx, t, at, page); err != nil || all && !more {
			return at, true, err
		}
	}
}

func byCluster(c bind.Consumer, at cluster.Name) int { return compare(c.Cluster, at) }

// over reports whether the part has reached its limits.
func (w *walk) over(ctx context.Context) bool {
	return w.status.Checked >= w.limit || w.status.Checked > 0 && time.Now().After(w.until) || ctx.Err() != nil
}

// page checks objects after a place. It returns the place to continue at, and whether all were
// checked. It stops at an object of a cluster that is no consumer, to skip that.
func (w *walk) page(ctx context.Context, t *target, at store.Place, page []store.Item) (_ store.Place, all bool, err error) {
	var bytes int64
	for _, item := range page {
		bytes += int64(item.Size())
	}
	if err := fair.Grow(ctx, bytes); err != nil {
		return at, false, err
	}
	defer func() { _ = fair.Grow(ctx, -bytes) }() // giving back never fails
	for skip := false; len(page) > 0 && !skip; {
		if w.over(ctx) {
			return at, false, ctx.Err()
		}
		err := w.compute(ctx, w.request.Export, func() error {
			for began := time.Now(); len(page) > 0 && !w.over(ctx) && time.Since(began) < seatTime; page = page[1:] {
				item := page[0]
				i, found := slices.BinarySearchFunc(t.consumers, item.Cluster, byCluster)
				if !found {
					at, skip = store.Place{Cluster: item.Cluster}, true
					return nil
				}
				if err := w.object(ctx, t, t.consumers[i], item); err != nil {
					return err
				}
				at = store.Place{Cluster: item.Cluster, Namespace: item.Namespace, Name: item.Name}
			}
			return nil
		})
		if err != nil {
			return at, false, err
		}
	}
	return at, len(page) == 0, nil
}

// object checks one object.
func (w *walk) object(ctx context.Context, t *target, c bind.Consumer, item store.Item) error {
	w.status.Checked++
	text, err := item.JSON(ctx)
	if err != nil {
		w.status.Unreadable++
		return ctx.Err()
	}
	var head struct {
		APIVersion string `json:"apiVersion"`
		Metadata   struct {
			ManagedFields []struct {
				APIVersion string `json:"apiVersion"`
			} `json:"managedFields"`
		} `json:"metadata"`
	}
	err = json.Unmarshal(text, &head)
	gv, malformed := runtimeschema.ParseGroupVersion(head.APIVersion)
	if err != nil || malformed != nil {
		w.status.Unreadable++
		return nil //nolint:nilerr // it is counted
	}
	managed := map[string]bool{}
	for _, m := range head.Metadata.ManagedFields {
		if of, err := runtimeschema.ParseGroupVersion(m.APIVersion); err == nil && of.Group == gv.Group {
			managed[of.Version] = true
		}
	}
	w.use(t, c, gv.Version, managed)
	if t.next == nil {
		return nil
	}
	before, err := w.before(t, c)
	if err != nil {
		return err
	}
	switch breaks, readable := t.next.breaks(ctx, stored{text, gv}, before); {
	case len(breaks) > 0:
		w.broken(t, c, item, breaks)
	case !readable:
		w.status.Unreadable++
	}
	return nil
}

// broken adds a broken object to the status.
func (w *walk) broken(t *target, c bind.Consumer, item store.Item, breaks []found) {
	s, path := w.status, string(w.PathOf(c.Cluster))
	s.Broken++
	if n := len(s.BrokenConsumers); n > 0 && s.BrokenConsumers[n-1].Cluster == string(c.Cluster) {
		s.BrokenConsumers[n-1].Broken++
	} else {
		s.BrokenConsumers = append(s.BrokenConsumers, apis.BrokenConsumer{Cluster: string(c.Cluster), Path: path, Broken: 1})
	}
	if len(s.BrokenObjects) < maxObjects {
		o := apis.BrokenObject{Cluster: string(c.Cluster), Path: path, Group: t.Group, Resource: t.Resource, Namespace: item.Namespace, Name: item.Name}
		for _, b := range breaks {
			o.Breaks = append(o.Breaks, b.ObjectBreak)
		}
		s.BrokenObjects = append(s.BrokenObjects, o)
	}
	counted := map[causeKey]bool{}
	for _, b := range breaks {
		key := causeKey{t.GroupResource, b.Reason, generalized(b.Field), b.kind}
		if !counted[key] {
			counted[key] = true
			w.count(key, b.Message)
		}
	}
}

// A causeKey identifies a cause.
type causeKey struct {
	runtimeschema.GroupResource
	reason      apis.BreakReason
	field, kind string
}

// count counts an object with a cause.
func (w *walk) count(key causeKey, message string) {
	if w.causes == nil {
		w.causes = map[causeKey]int{}
	}
	i, known := w.causes[key]
	if !known && len(w.causes) >= maxCauses-3 { // names of fields may be a tenant's
		key = causeKey{reason: key.reason, field: "*"}
		message = "further causes"
		i, known = w.causes[key]
	}
	if !known {
		i = len(w.status.Causes)
		w.causes[key] = i
		w.status.Causes = append(w.status.Causes, apis.BrokenCause{Group: key.Group, Resource: key.Resource, Reason: key.reason, Field: key.field, Message: message})
	}
	w.status.Causes[i].Objects++
}

// generalized returns the path of a field with [*] instead of indexes and keys.
func generalized(field string) string {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(field, "[")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		out.WriteString("[*]")
		if _, field, found = strings.Cut(after, "]"); !found {
			return out.String()
		}
	}
}
