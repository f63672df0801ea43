package syncer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/server/routine"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/profile"
)

const (
	// mostReport is the maximum of the bytes of a report, mostStatus that of the status in it, and mostReason
	// and mostMissing those of its texts. An honest agent keeps to them.
	mostReport, mostStatus, mostReason, mostMissing = 64 << 10, 16 << 10, 128, 1024
	// longest is how long a watch lasts without timeoutSeconds, and bookmarked is the time
	// between two bookmarks.
	longest    = 10 * time.Minute
	bookmarked = time.Minute
)

// content plans a request for the objects of a target.
func (c *call) content(req *http.Request) (http.Handler, error) {
	of := schema.GroupResource{Group: c.info.APIGroup, Resource: c.info.Resource}
	known := of == workloads() || of == assignments() || of == reports() || of == profiles()
	below := c.info.IsResourceRequest && c.info.Verb == "get" && c.at != "*" && len(c.info.Parts) == 3
	if below && of.Group == workload.GroupVersion.Group {
		switch of.Resource {
		case Workloads:
			return c.page(c.get), nil
		case Dependencies:
			return c.page(c.dependency), nil
		case Unused:
			return c.page(c.unused), nil
		}
	}
	if !c.info.IsResourceRequest || !known || c.info.Subresource != "" {
		return nil, c.refuse("the view has the workloads of the target, what they refer to, its Assignments and its reports")
	}
	all := c.at == "*"
	switch {
	case c.info.Verb == "list" && all && c.info.Namespace == "":
		return c.page(func(w http.ResponseWriter, req *http.Request) error { return c.list(w, req, of) }), nil
	case c.info.Verb == "watch" && all && c.info.Namespace == "" && c.info.Name == "":
		if req.URL.Query().Get("sendInitialEvents") != "" {
			return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", nil)
		}
		return c.page(func(w http.ResponseWriter, req *http.Request) error { return c.watch(w, req, of) }), nil
	case of == reports() && !all && (c.info.Verb == "update" || c.info.Verb == "delete"):
		return c.page(c.report), nil
	}
	return nil, c.refuse("the view lists and watches in all logical clusters, reads in one, and writes reports")
}

// page returns a handler that answers with a Status if f fails. The agent alone reads it, which needs
// no other form than JSON.
func (c *call) page(f func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := f(w, req); err != nil {
			fail(w, err)
		}
	})
}

func fail(w http.ResponseWriter, err error) {
	status, ok := err.(apierrors.APIStatus) //nolint:errorlint // the outermost one
	if !ok {
		status = apierrors.NewInternalError(err)
	}
	s := status.Status()
	s.Kind, s.APIVersion = "Status", "v1"
	answer(w, int(s.Code), s)
}

func answer(w http.ResponseWriter, code int, with any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(with) // the client has gone if it fails
}

// list writes the objects of the target, one at a time.
func (c *call) list(w http.ResponseWriter, req *http.Request, of schema.GroupResource) error {
	h, release, err := c.hub(req.Context())
	if err != nil {
		return err
	}
	defer release()
	found, version := h.stream(c.key).all(of)
	gvk := kindOf(of)
	w.Header().Set("Content-Type", "application/json")
	_, err = fmt.Fprintf(w, `{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":%q},"items":[`, gvk.GroupVersion(), gvk.Kind+"List", versionText(version))
	for i, sep := 0, ""; i < len(found) && err == nil; i++ {
		o := h.get(c.key, found[i].id)
		if o == nil {
			continue // a watch from the version tells that it is gone
		}
		o.SetResourceVersion(versionText(found[i].version))
		var text []byte
		if text, err = json.Marshal(o); err == nil {
			_, err = io.WriteString(w, sep+string(text))
		}
		sep = ","
	}
	if err == nil {
		_, err = io.WriteString(w, "]}\n")
	}
	if err != nil {
		panic(http.ErrAbortHandler) // the client must not take a part of the list for all of it
	}
	return nil
}

// watch serves a watch after the filters of the request have returned, as the server does with
// others.
func (c *call) watch(w http.ResponseWriter, req *http.Request, of schema.GroupResource) error {
	h, release, err := c.hub(req.Context())
	if err != nil {
		return err
	}
	from, err := strconv.ParseInt(req.URL.Query().Get("resourceVersion"), 10, 64)
	s := h.stream(c.key)
	if err == nil {
		_, _, _, ok := s.since(of, from)
		if !ok {
			release()
			return apierrors.NewResourceExpired("the changes since this version are not known any more; list again")
		}
	} else {
		release()
		return apierrors.NewBadRequest("a watch begins at the resourceVersion of a list")
	}
	serve := func() {
		defer release()
		c.stream(w, req, h, &cursor{stream: s, of: of, version: from})
	}
	if task := routine.TaskFrom(req.Context()); task != nil {
		task.Func = serve
		return nil
	}
	serve()
	return nil
}

// A cursor is where a watch is in its stream.
type cursor struct {
	*stream
	of      schema.GroupResource
	version int64
}

// stream writes changes until the client goes, the time of the watch is over, or the agent may not
// see them any more.
func (c *call) stream(w http.ResponseWriter, req *http.Request, h *hub, at *cursor) {
	limit := longest
	if seconds, err := strconv.Atoi(req.URL.Query().Get("timeoutSeconds")); err == nil && seconds > 0 {
		limit = min(limit, time.Duration(seconds)*time.Second)
	}
	ctx, cancel := context.WithTimeout(req.Context(), limit)
	defer cancel()
	check, stop := time.NewTicker(again), c.stopping()
	defer check.Stop()
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	said := time.Now()
	for {
		changes, newest, next, ok := at.since(at.of, at.version)
		if !ok {
			return // it was too slow; the agent lists again
		}
		for _, change := range changes {
			if !h.send(w, c.key, change) {
				return
			}
			said = time.Now()
		}
		at.version = newest
		if time.Since(said) > bookmarked {
			said = time.Now()
			if !bookmark(w, at.of, newest) {
				return
			}
		}
		if err := out.Flush(); err != nil {
			return
		}
		select {
		case <-next:
		case <-ctx.Done():
			return
		case <-h.source.Ended:
			return
		case <-stop:
			return
		case <-check.C:
			if err := c.authorize(ctx, req); err != nil || c.target.Spec.Mode != workload.PullMode {
				return
			}
		}
	}
}

// send writes a change, and reports whether the watch goes on.
func (h *hub) send(w io.Writer, target string, change change) bool {
	o, event := tombstone(change.id), watch.Deleted
	if !change.gone {
		if o = h.get(target, change.id); o == nil {
			return true // a later change tells that it is gone
		}
		event = watch.Modified
		if change.added {
			event = watch.Added
		}
	}
	o.SetResourceVersion(versionText(change.version))
	return frame(w, event, o)
}

func bookmark(w io.Writer, of schema.GroupResource, version int64) bool {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetGroupVersionKind(kindOf(of))
	o.SetResourceVersion(versionText(version))
	return frame(w, watch.Bookmark, o)
}

func frame(w io.Writer, event watch.EventType, o *unstructured.Unstructured) bool {
	return json.NewEncoder(w).Encode(map[string]any{"type": event, "object": o.Object}) == nil
}

// named returns the object that the request names.
func (c *call) named() engine.ID {
	return engine.ID{GroupResource: schema.ParseGroupResource(c.info.Subresource), Key: kcp.Key{Cluster: c.at, Namespace: c.info.Namespace, Name: c.info.Name}}
}

// get reads an object from the server, not from a cache. An agent deletes what is not found.
func (c *call) get(w http.ResponseWriter, req *http.Request) error {
	h, release, err := c.hub(req.Context())
	if err != nil {
		return err
	}
	defer release()
	of, side := c.named(), h.source.Of(c.key)
	p := side.Profile(of.GroupResource)
	if p == nil {
		return apierrors.NewServiceUnavailable("the kind has no profile at this server")
	}
	o, a, err := side.Read(req.Context(), of)
	switch {
	case err != nil:
		return err
	case o == nil || !concerns(a, c.key) || a.Spec.Workload.UID != string(o.GetUID()):
		return apierrors.NewNotFound(workloads(), c.info.Name)
	}
	// Its Assignment comes along: both were read from the server.
	answer(w, http.StatusOK, Read{Workload: workloadFor(o, p), Assignment: assignmentFor(a, c.key)})
	return nil
}

// dependency reads an object from the server that objects with a part at the target refer to. The
// server decides whether one does.
func (c *call) dependency(w http.ResponseWriter, req *http.Request) error {
	h, release, err := c.hub(req.Context())
	if err != nil {
		return err
	}
	defer release()
	of, side := c.named(), h.source.Of(c.key)
	if p := side.Profile(of.GroupResource); p == nil || p.Class != profile.Dependency || len(side.Users(of)) == 0 {
		return apierrors.NewForbidden(schema.GroupResource{Group: workload.GroupVersion.Group, Resource: Dependencies}, c.info.Name,
			errors.New("no workload of the target refers to the object"))
	}
	o, why, withdrawn, err := side.Dependency(req.Context(), of)
	if err != nil {
		return err
	}
	if o != nil {
		o = o.DeepCopy()
		o.SetManagedFields(nil)
	}
	answer(w, http.StatusOK, DependencyRead{Object: o, Why: why, Withdrawn: withdrawn})
	return nil
}

// unused answers whether the agent may delete its copy of a dependency.
func (c *call) unused(w http.ResponseWriter, req *http.Request) error {
	h, release, err := c.hub(req.Context())
	if err != nil {
		return err
	}
	defer release()
	of, side := c.named(), h.source.Of(c.key)
	if p := side.Profile(of.GroupResource); p == nil || p.Class != profile.Dependency {
		return apierrors.NewNotFound(schema.GroupResource{Group: workload.GroupVersion.Group, Resource: Unused}, c.info.Name)
	}
	if len(side.Users(of)) > 0 { // the server need not be asked
		answer(w, http.StatusOK, UnusedRead{})
		return nil
	}
	if !h.stream(c.key).asks.TryAccept() { // each answer lists all kinds in a namespace
		return apierrors.NewTooManyRequests(fmt.Sprintf("the agent asks more than %d times per second whether objects are unused; try again later", questionsPerSecond), 1)
	}
	unused, err := side.Unused(req.Context(), of)
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, UnusedRead{unused})
	return nil
}

// report writes or deletes a report of the target.
func (c *call) report(w http.ResponseWriter, req *http.Request) error {
	h, release, err := c.hub(req.Context())
	if err != nil {
		return err
	}
	defer release()
	key := kcp.Key{Cluster: c.at, Namespace: c.info.Namespace, Name: c.info.Name}
	if c.info.Verb == "delete" {
		if have := h.source.Reports.Get(key); have != nil && have.Spec.Key == c.key {
			err = h.source.Of(c.key).Report(req.Context(), engine.IDFor(have, have.Spec.Workload), nil)
		}
	} else {
		err = c.write(req, h, key)
	}
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, metav1.Status{Status: metav1.StatusSuccess})
	return nil
}

func (c *call) write(req *http.Request, h *hub, key kcp.Key) error {
	given := &workload.TargetStatus{}
	if err := json.NewDecoder(io.LimitReader(req.Body, mostReport)).Decode(given); err != nil {
		return apierrors.NewBadRequest("the report cannot be decoded: " + err.Error())
	}
	of := engine.IDFor(given, given.Spec.Workload)
	of.Key.Cluster, of.Key.Namespace = key.Cluster, key.Namespace
	side := h.source.Of(c.key)
	a := side.Assignment(of)
	switch {
	case oversized(&given.Spec):
		return apierrors.NewRequestEntityTooLargeError("the report is larger than those of an agent")
	case given.Spec.Key != c.key || key.Name != engine.StatusName(of.GroupResource, of.Key.Name, c.key):
		return apierrors.NewBadRequest("the report is not one of this target")
	case !concerns(a, c.key) || a.Spec.Workload.UID != given.Spec.Workload.UID:
		return apierrors.NewConflict(reports(), key.Name, fmt.Errorf("the workload is not assigned to the target"))
	}
	made := &workload.TargetStatus{Spec: given.Spec}
	made.Name, made.Namespace = key.Name, key.Namespace
	made.Spec.Workload = a.Spec.Workload
	return side.Report(req.Context(), of, made)
}

// oversized reports whether a report has more than an agent reports.
func oversized(s *workload.TargetStatusSpec) bool {
	return s.Reported != nil && len(s.Reported.Raw) > mostStatus || len(s.Reason) > mostReason ||
		slices.ContainsFunc(s.Missing, func(m string) bool { return len(m) > mostMissing })
}
