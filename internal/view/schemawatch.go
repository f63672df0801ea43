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

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/fair"
)

const (
	// watchTime is the time after which a watch without a timeout ends.
	watchTime = 10 * time.Minute
	// watchPause is the time between two reads of a watch, which read all schemas.
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
	once    bool // the response is kept in memory until it is written
}

func newSchemaQuery(req *http.Request, c cluster.Name, info *request.RequestInfo) (*schemaQuery, error) {
	query := req.URL.Query()
	q := &schemaQuery{cluster: c, name: info.Name, since: query.Get("resourceVersion"), timeout: watchTime, once: info.Verb == "list"}
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

// grow counts the memory of an object in a list.
func (q *schemaQuery) grow(ctx context.Context, o *unstructured.Unstructured) error {
	if !q.once {
		return nil
	}
	text, err := json.Marshal(o.Object)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return fair.Grow(ctx, 8*int64(len(text))) // decoded, and in JSON
}

// watch answers a watch.
func (v *Schemas) watch(w http.ResponseWriter, req *http.Request, q *schemaQuery) error {
	ctx, cancel := context.WithTimeout(req.Context(), q.timeout)
	defer cancel()
	look, stop := v.lasting.subscribe(q.cluster)
	defer stop()
	of := &schemaWatch{Schemas: v, q: q, seen: map[string]*unstructured.Unstructured{}, out: w, stream: json.NewEncoder(w)}
	if err := of.begin(ctx); err != nil {
		return err
	}
	flush := http.NewResponseController(w)
	for {
		pause := time.After(watchPause)
		if of.look(ctx) != nil || flush.Flush() != nil {
			return nil // the client has disconnected, or watches again
		}
		select {
		case <-pause:
		case <-ctx.Done():
			return nil
		}
		select {
		case <-look:
		case <-ctx.Done():
			return nil
		}
	}
}

// A schemaWatch sends the schemas that are new, other or gone after each change of the cluster.
// It remembers only their metadata.
type schemaWatch struct {
	*Schemas
	q      *schemaQuery
	seen   map[string]*unstructured.Unstructured // by UID
	out    http.ResponseWriter
	stream *json.Encoder
}

// begin sends the header. If the client has a list, it reads what is in that.
func (w *schemaWatch) begin(ctx context.Context) error {
	if w.q.since != "" && w.q.since != "0" {
		rev, err := w.config.APIs().Since(w.q.since)
		if err != nil {
			return err
		}
		err = w.each(ctx, w.q, func(uid string, o map[string]any) error {
			w.seen[uid] = stub(&unstructured.Unstructured{Object: o})
			return nil
		})
		if err != nil {
			return err
		}
		if !w.unchanged(w.q.cluster, rev) {
			return apierrors.NewResourceExpired("the schemas have changed since this resource version; list them again")
		}
	}
	w.out.Header().Set("Content-Type", "application/json")
	w.out.WriteHeader(http.StatusOK)
	return nil
}

func (w *schemaWatch) send(kind watch.EventType, o map[string]any) error {
	return w.stream.Encode(map[string]any{"type": string(kind), "object": o})
}

// look sends what has changed.
func (w *schemaWatch) look(ctx context.Context) error {
	left := maps.Clone(w.seen)
	err := w.each(ctx, w.q, func(uid string, o map[string]any) error {
		now, before, kind := &unstructured.Unstructured{Object: o}, left[uid], watch.Added
		delete(left, uid)
		if before != nil && before.GetResourceVersion() == now.GetResourceVersion() {
			return nil
		}
		if before != nil {
			kind = watch.Modified
		}
		w.seen[uid] = stub(now)
		return w.send(kind, o)
	})
	if err != nil {
		return err
	}
	for uid, o := range left {
		delete(w.seen, uid)
		if err := w.send(watch.Deleted, o.Object); err != nil {
			return err
		}
	}
	return nil
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
