package view

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/sharing/bind"
)

const (
	// watchTime is the time after which a watch without a timeout ends.
	watchTime = 10 * time.Minute
	// watchPause is the time between two looks of a watch at all schemas.
	watchPause = 200 * time.Millisecond
)

// A schemaQuery is a request for the schemas of a cluster.
type schemaQuery struct {
	cluster cluster.Name
	name    string // for get
	labels  labels.Selector
	fields  fields.Selector
	since   string // resource version
	timeout time.Duration
}

func newSchemaQuery(req *http.Request, c cluster.Name, info *request.RequestInfo) (*schemaQuery, error) {
	query := req.URL.Query()
	q := &schemaQuery{cluster: c, name: info.Name, since: query.Get("resourceVersion"), timeout: watchTime}
	var err error
	if q.labels, err = labels.Parse(query.Get("labelSelector")); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if q.fields, err = fields.ParseSelector(query.Get("fieldSelector")); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	for _, r := range q.fields.Requirements() {
		if r.Field != "metadata.name" {
			return nil, apierrors.NewBadRequest("field label not supported: " + r.Field)
		}
	}
	if s, err := strconv.Atoi(query.Get("timeoutSeconds")); err == nil && s > 0 && time.Duration(s)*time.Second < watchTime {
		q.timeout = time.Duration(s) * time.Second
	}
	if info.Verb == "watch" {
		err = onlyReads(req, info, apiSchemas)
	}
	return q, err
}

func (q *schemaQuery) selects(o *unstructured.Unstructured) bool {
	return q.labels.Matches(labels.Set(o.GetLabels())) && q.fields.Matches(fields.Set{"metadata.name": o.GetName()})
}

// watch answers a watch.
func (v *Schemas) watch(w http.ResponseWriter, req *http.Request, q *schemaQuery) error {
	ctx, cancel := context.WithTimeout(req.Context(), q.timeout)
	defer cancel()
	changed, stop := v.watches.subscribe(q.cluster)
	defer stop()
	of := &schemaWatch{
		q: q, seen: map[string]seenSchema{}, out: w,
		bound: func() []bind.BoundSchema { return v.config.APIs().BoundSchemas(q.cluster) }, read: v.read,
	}
	if err := v.begin(ctx, of); err != nil {
		return err
	}
	of.follow(ctx, changed)
	return nil
}

// begin sends the header. If the client has a list, the watch begins with the schemas of that.
func (v *Schemas) begin(ctx context.Context, w *schemaWatch) error {
	if w.q.since != "" && w.q.since != "0" {
		rev, err := v.config.APIs().Since(w.q.since)
		if err != nil {
			return err
		}
		if err := w.look(ctx, func(watch.EventType, map[string]any) error { return nil }); err != nil {
			return err
		}
		if !v.unchanged(w.q.cluster, rev) {
			return apierrors.NewResourceExpired("the schemas have changed since this resource version; list them again")
		}
	}
	w.out.Header().Set("Content-Type", "application/json")
	w.out.WriteHeader(http.StatusOK)
	return nil
}

// A schemaWatch sends the schemas that are new, other or gone after each change of the cluster.
// It remembers only their revisions and metadata, and reads only those with another revision.
type schemaWatch struct {
	q    *schemaQuery
	seen map[string]seenSchema // by UID
	out  http.ResponseWriter
	// bound returns the schemas of the cluster, and read the content of one.
	bound func() []bind.BoundSchema
	read  func(context.Context, bind.BoundSchema) (*unstructured.Unstructured, error)
}

// A seenSchema is the last state of a schema in a watch.
type seenSchema struct {
	revision int64
	stub     *unstructured.Unstructured // nil if the query does not select the schema
}

// follow sends what has changed, after each value of changed, until ctx ends, the client
// disconnects, or a schema cannot be read. It takes a processor seat of the tenant each time.
func (w *schemaWatch) follow(ctx context.Context, changed <-chan struct{}) {
	work, flush := fair.From(ctx), http.NewResponseController(w.out).Flush
	for first := true; ; first = false { // the request has a seat when it begins
		pause := time.After(watchPause)
		busy := !first && work.Compute(ctx, fair.Light) != nil
		if !busy {
			err := w.look(ctx, func(kind watch.EventType, o map[string]any) error { return w.send(ctx, kind, o) })
			work.Rest()
			if err != nil || flush() != nil {
				return // the client watches again
			}
		}
		if first {
			flowcontrol.WatchInitialized(ctx)
		}
		select {
		case <-pause:
		case <-ctx.Done():
			return
		}
		if busy {
			continue // the changes are still to be sent
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// send writes an event. The request has no seat while it waits for the client.
func (w *schemaWatch) send(ctx context.Context, kind watch.EventType, o map[string]any) error {
	text, err := json.Marshal(map[string]any{"type": string(kind), "object": o})
	if err != nil {
		return err
	}
	fair.Wait(ctx, func() { _, err = w.out.Write(append(text, '\n')) })
	return err
}

// look calls send with what has changed since the last look.
func (w *schemaWatch) look(ctx context.Context, send func(watch.EventType, map[string]any) error) error {
	left := maps.Clone(w.seen)
	for _, s := range w.bound() {
		if s.Revision == 0 {
			continue // it does not exist any more
		}
		if before := w.seen[s.UID]; s.Revision > before.revision {
			o, err := w.read(ctx, s)
			if err != nil {
				return err
			}
			if o == nil {
				continue
			}
			if err := w.note(s, before, o, send); err != nil {
				return err
			}
		}
		delete(left, s.UID)
	}
	for uid, before := range left {
		delete(w.seen, uid)
		if before.stub == nil {
			continue
		}
		if err := send(watch.Deleted, before.stub.Object); err != nil {
			return err
		}
	}
	return nil
}

// note remembers a schema that was read, and sends the change since before.
func (w *schemaWatch) note(s bind.BoundSchema, before seenSchema, o *unstructured.Unstructured, send func(watch.EventType, map[string]any) error) error {
	now := seenSchema{revision: s.Revision}
	if w.q.selects(o) {
		now.stub = stub(o)
	}
	w.seen[s.UID] = now
	switch {
	case now.stub == nil && before.stub == nil:
		return nil
	case now.stub == nil:
		return send(watch.Deleted, before.stub.Object)
	case before.stub == nil:
		return send(watch.Added, o.Object)
	case before.stub.GetResourceVersion() == o.GetResourceVersion():
		return nil // an earlier look has read it before this process knew of it
	}
	return send(watch.Modified, o.Object)
}

// stub returns an object without its content, for the event of its deletion.
func stub(o *unstructured.Unstructured) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: map[string]any{}}
	out.SetGroupVersionKind(o.GroupVersionKind())
	out.SetName(o.GetName())
	out.SetUID(o.GetUID())
	out.SetLabels(o.GetLabels())
	out.SetCreationTimestamp(metav1.Time{Time: o.GetCreationTimestamp().Time})
	out.SetResourceVersion(o.GetResourceVersion())
	out.SetAnnotations(map[string]string{cluster.Annotation: string(cluster.Of(o))})
	return out
}
