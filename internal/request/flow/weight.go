package flow

import (
	"net/http"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/view"
)

// A request above one of these limits is heavy: it takes more than one or two
// milliseconds of processor time.
const (
	heavyBody  = 32 << 10  // bytes of the request body; a member counts for memberBytes
	heavyList  = 256 << 10 // stored bytes of listed objects, returned in their stored form
	heavyShape = 16 << 10  // stored bytes of listed objects, converted to another form
	heavyQuery = 2 << 10   // bytes of selectors

	// memberBytes is how many bytes of a body take as long as one member: managed fields name
	// each of them.
	memberBytes = 100
)

// Default limits of reads and writes in flight. Their sum is the number of seats of the
// priority levels.
const (
	MaxReads  = 800
	MaxWrites = 400
)

// class estimates the processor time of a request. sent is the extent of its body.
func (f *Filters) class(req *http.Request, info *request.RequestInfo, sent fair.Extent) fair.Class {
	if !info.IsResourceRequest {
		if strings.HasPrefix(info.Path, "/openapi/") || strings.HasPrefix(info.Path, view.Prefix) {
			return fair.Heavy
		}
		return fair.Light
	}
	if sent.Bytes+memberBytes*sent.Members > heavyBody || len(req.URL.RawQuery) > heavyQuery || info.Verb == "deletecollection" {
		return fair.Heavy
	}
	if f.listed(req, info) > heavyList || reshapes(req) && f.listed(req, info) > heavyShape {
		return fair.Heavy
	}
	return fair.Light
}

// listed estimates the stored bytes that a request reads. For a single object it returns
// the average size of the resource's objects in the cluster.
func (f *Filters) listed(req *http.Request, info *request.RequestInfo) int64 {
	c, ok := cluster.From(req.Context())
	if !ok || c == cluster.All {
		return 0
	}
	u := f.Usage(c, schema.GroupResource{Group: info.APIGroup, Resource: info.Resource})
	if u.Objects == 0 {
		return 0
	}
	switch info.Verb {
	case "list":
		return u.Bytes
	case "watch":
		return u.Bytes / 4 // most watches continue from a list
	default:
		return u.Bytes / u.Objects
	}
}

// reshapes reports whether objects are converted to a Table, PartialObjectMetadata or YAML.
func reshapes(req *http.Request) bool {
	accept := req.Header.Get("Accept")
	return strings.Contains(accept, "as=") || strings.Contains(accept, "yaml")
}

// isLease reports whether a request reads or writes a single lease.
func isLease(info *request.RequestInfo) bool {
	return info.APIGroup == coordinationv1.GroupName && info.Resource == "leases" && info.Verb != "list" && info.Verb != "watch" && info.Verb != "deletecollection"
}

// estimateSeats returns the number of seats that a request takes at its priority level. It
// is one for all: a heavy request waits for its processor with this seat, so several
// waiting ones with more seats each would fill the level.
func estimateSeats(*http.Request, string, string) flowcontrolrequest.WorkEstimate {
	return flowcontrolrequest.WorkEstimate{InitialSeats: 1}
}
