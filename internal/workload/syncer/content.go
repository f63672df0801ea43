package syncer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/profile"
)

// mostReport is the maximum of the bytes of a report, mostStatus that of the status in it, and mostReason
// and mostMissing those of its texts. An honest agent keeps to them.
const mostReport, mostStatus, mostReason, mostMissing = 64 << 10, 16 << 10, 128, 1024

// content plans a request for the objects of a target.
func (c *call) content(req *http.Request) (http.Handler, error) {
	of := schema.GroupResource{Group: c.info.APIGroup, Resource: c.info.Resource}
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
	all := c.at == "*"
	if c.info.Path == kcp.ViewWatchPath && c.info.Verb == "watch" && all {
		from, err := together(req.URL.Query()["resource"])
		return c.watch(from), err
	}
	if !c.info.IsResourceRequest || !watched(of) || c.info.Subresource != "" {
		return nil, c.refuse("the view has the workloads of the target, what they refer to, its Assignments and its reports")
	}
	switch {
	case c.info.Verb == "list" && all && c.info.Namespace == "":
		return c.page(func(w http.ResponseWriter, req *http.Request) error { return c.list(w, req, of) }), nil
	case c.info.Verb == "watch" && all && c.info.Namespace == "" && c.info.Name == "":
		from, err := alone(of, req.URL.Query())
		return c.watch(from), err
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
