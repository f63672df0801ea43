package serve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"strconv"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/unforked/kcp/internal/network/inprocess"
)

// patchAttempts is the maximum of retries of a strategic merge patch after conflicts.
const patchAttempts = 10

// A wellKnown handler serves custom resources of a kind that Kubernetes clients have
// compiled in, such as Pods. Clients write such objects in protobuf and patch them by
// strategic merge. Upstream's handler of custom resources supports neither, so this
// handler translates both to JSON.
type wellKnown struct {
	http.Handler
	kind    schema.GroupVersionKind
	maxBody int64
}

// isWellKnown reports whether clients have a kind compiled in.
func isWellKnown(kind schema.GroupVersionKind) bool { return scheme.Scheme.Recognizes(kind) }

// ServeHTTP implements [http.Handler].
func (k wellKnown) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var err error
	switch media, _, _ := mime.ParseMediaType(req.Header.Get("Content-Type")); {
	case undecodable(req):
		if req, err = k.fromProtobuf(req); err == nil {
			k.Handler.ServeHTTP(w, req)
		}
	case req.Method == http.MethodPatch && media == string(types.StrategicMergePatchType) && patchable(req):
		err = k.patch(w, req)
	default:
		k.Handler.ServeHTTP(w, req)
	}
	if err != nil {
		responsewriters.ErrorNegotiated(err, apiextensions.Codecs, k.kind.GroupVersion(), w, req)
	}
}

// undecodable reports whether the body of a request is in protobuf. Custom resources
// have no protobuf encoding, and upstream's handler panics on such a body.
func undecodable(req *http.Request) bool {
	if req.Method != http.MethodPost && req.Method != http.MethodPut {
		return false
	}
	kind, _, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	return err == nil && kind == runtime.ContentTypeProtobuf
}

// patchable reports whether a request is for an object of the kind; a scale is not.
func patchable(req *http.Request) bool {
	info, ok := request.RequestInfoFrom(req.Context())
	return ok && (info.Subresource == "" || info.Subresource == "status")
}

// body reads the body of a request, up to maxBody bytes.
func (k wellKnown) body(req *http.Request) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(req.Body, k.maxBody+1))
	if err != nil {
		return nil, apierrors.NewBadRequest("read the body: " + err.Error())
	}
	if int64(len(b)) > k.maxBody {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", k.maxBody))
	}
	return b, nil
}

// withBody returns a copy of req with another body and content type.
func withBody(req *http.Request, media string, body []byte) *http.Request {
	out := req.Clone(req.Context())
	out.Header.Set("Content-Type", media)
	out.Header.Set("Content-Length", strconv.Itoa(len(body)))
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return out
}

// fromProtobuf returns a copy of req with its object in JSON.
func (k wellKnown) fromProtobuf(req *http.Request) (*http.Request, error) {
	body, err := k.body(req)
	if err != nil {
		return req, err
	}
	o, kind, err := scheme.Codecs.UniversalDeserializer().Decode(body, &k.kind, nil)
	if err != nil {
		return req, apierrors.NewBadRequest(fmt.Sprintf("the object is no %s in protobuf: %v", k.kind.Kind, err))
	}
	o.GetObjectKind().SetGroupVersionKind(*kind)
	text, err := json.Marshal(o)
	if err != nil {
		return req, apierrors.NewBadRequest(err.Error())
	}
	return withBody(req, runtime.ContentTypeJSON, text), nil
}

// patch applies a strategic merge patch: it reads the object, merges and updates it. It
// retries after a conflict, unless the patch has a resource version. If it returns an
// error, it has written no response.
func (k wellKnown) patch(w http.ResponseWriter, req *http.Request) error {
	patch, err := k.body(req)
	if err != nil {
		return err
	}
	now := k.current(req)
	for left := patchAttempts; ; left-- {
		if now.Code != http.StatusOK {
			relay(w, now)
			return nil
		}
		next, pinned, err := k.merge(now.Body.Bytes(), patch)
		if err != nil {
			return err
		}
		write := withBody(req, runtime.ContentTypeJSON, next)
		write.Method = http.MethodPut
		done := k.as("update", write)
		if done.Code != http.StatusConflict || pinned || left == 0 {
			relay(w, done)
			return nil
		}
		before := revision(now)
		if now = k.current(req); revision(now) == before {
			relay(w, done) // the object is unchanged: the conflict has another reason
			return nil
		}
	}
}

// current reads the object of a request. It needs no authorization for get, because the
// response to a patch contains the object too.
func (k wellKnown) current(req *http.Request) *inprocess.Answer {
	read := withBody(req, runtime.ContentTypeJSON, nil)
	read.Method, read.URL.RawQuery = http.MethodGet, ""
	read.Header = http.Header{"Accept": {runtime.ContentTypeJSON}}
	return k.as("get", read)
}

// as serves a request with another verb in its RequestInfo, and returns the response.
func (k wellKnown) as(verb string, req *http.Request) *inprocess.Answer {
	info, _ := request.RequestInfoFrom(req.Context())
	other := *info
	other.Verb = verb
	return inprocess.Ask(k.Handler, req.WithContext(request.WithRequestInfo(req.Context(), &other)))
}

// merge applies a strategic merge patch to an object. pinned reports whether the patch
// has a resource version.
func (k wellKnown) merge(now, patch []byte) (next []byte, pinned bool, err error) {
	example, err := scheme.Scheme.New(k.kind)
	if err != nil {
		return nil, false, err
	}
	if next, err = strategicpatch.StrategicMergePatch(now, patch, example); err != nil {
		return nil, false, apierrors.NewBadRequest("strategic merge patch: " + err.Error())
	}
	var asked metav1.PartialObjectMetadata
	if err := json.Unmarshal(patch, &asked); err != nil {
		return nil, false, apierrors.NewBadRequest("strategic merge patch: " + err.Error())
	}
	return next, asked.ResourceVersion != "", nil
}

// revision returns the resource version of the object in an answer.
func revision(a *inprocess.Answer) string {
	var o metav1.PartialObjectMetadata
	_ = json.Unmarshal(a.Body.Bytes(), &o) // a response without an object has none
	return o.ResourceVersion
}

// relay writes a recorded response to w.
func relay(w http.ResponseWriter, a *inprocess.Answer) {
	maps.Copy(w.Header(), a.Header())
	w.WriteHeader(a.Code)
	_, _ = w.Write(a.Body.Bytes()) // an error means that the client has disconnected
}
