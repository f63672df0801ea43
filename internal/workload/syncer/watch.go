package syncer

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"

	"github.com/unforked/kcp/internal/request/response"
)

const (
	// longest is how long a watch lasts without timeoutSeconds, and bookmarked is the time
	// between two bookmarks.
	longest    = 10 * time.Minute
	bookmarked = time.Minute
)

// together returns the versions at which a watch of several resources begins, such as
// "workload.kcp.io/v1alpha1/assignments@7".
func together(resources []string) (map[schema.GroupResource]int64, error) {
	from := map[schema.GroupResource]int64{}
	for _, r := range resources {
		name, at, _ := strings.Cut(r, "@")
		plural, ours := strings.CutPrefix(name, workload.GroupVersion.String()+"/")
		of := workload.GroupVersion.WithResource(plural).GroupResource()
		version, err := strconv.ParseInt(at, 10, 64)
		if !ours || !watched(of) || err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("resource %q is not of the form %s/<plural>@<resourceVersion>, or the view does not have it", r, workload.GroupVersion))
		}
		from[of] = version
	}
	if len(from) == 0 {
		return nil, apierrors.NewBadRequest("name what to watch, as in ?resource=" + workload.GroupVersion.String() + "/assignments@7")
	}
	return from, nil
}

// alone returns the version at which a watch of one resource begins.
func alone(of schema.GroupResource, query url.Values) (map[schema.GroupResource]int64, error) {
	if query.Get("sendInitialEvents") != "" {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", nil)
	}
	from, err := strconv.ParseInt(query.Get("resourceVersion"), 10, 64)
	if err != nil {
		return nil, apierrors.NewBadRequest("a watch begins at the resourceVersion of a list")
	}
	return map[schema.GroupResource]int64{of: from}, nil
}

// watched reports whether the view can be asked to watch a resource.
func watched(of schema.GroupResource) bool {
	return of == workloads() || of == assignments() || of == reports() || of == profiles()
}

// watch returns a handler that watches resources after the versions of each.
func (c *call) watch(from map[schema.GroupResource]int64) http.Handler {
	return c.page(func(w http.ResponseWriter, req *http.Request) error {
		h, release, err := c.hub(req.Context())
		if err != nil {
			return err
		}
		at := &cursor{stream: h.stream(c.key), versions: from}
		if _, _, _, ok := at.since(from); !ok {
			release()
			return apierrors.NewResourceExpired("the changes since this version are not known any more; list again")
		}
		response.AfterFilters(req.Context(), func() {
			defer release()
			c.stream(w, req, h, at)
		})
		return nil
	})
}

// A cursor is where a watch is in its stream: the version that it has seen of each resource.
type cursor struct {
	*stream
	versions map[schema.GroupResource]int64
}

// next returns the changes that the watch has not seen, and moves on.
func (c *cursor) next() (changes []change, next <-chan struct{}, ok bool) {
	changes, newest, next, ok := c.since(c.versions)
	for of := range c.versions {
		c.versions[of] = newest
	}
	return changes, next, ok
}

// bookmark returns an object of one of the resources, with the version that the watch has seen of each.
func (c *cursor) bookmark() *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	for of, version := range c.versions {
		o.SetGroupVersionKind(kindOf(of))
		o.SetResourceVersion(versionText(version))
	}
	return o
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
		changes, next, ok := at.next()
		if !ok {
			return // it was too slow; the agent lists again
		}
		for _, change := range changes {
			if !h.send(w, c.key, change) {
				return
			}
			said = time.Now()
		}
		if time.Since(said) > bookmarked {
			said = time.Now()
			if !frame(w, watch.Bookmark, at.bookmark()) {
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

func frame(w io.Writer, event watch.EventType, o *unstructured.Unstructured) bool {
	return json.NewEncoder(w).Encode(map[string]any{"type": event, "object": o.Object}) == nil
}
