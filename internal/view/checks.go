package view

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/client-go/kubernetes/scheme"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/define"
	"github.com/unforked/kcp/internal/sharing/evolve"
	"github.com/unforked/kcp/internal/sharing/exports"
)

const (
	// maxCheck is the maximum size of a check in bytes, that of an object.
	maxCheck = 3 << 20
	// maxCandidates is the maximum of schemas in a check.
	maxCandidates = 20
)

// Checks is the view in which providers check schemas of their exports before they use them. It
// answers POST requests with an APIExportCheck. Users need the verb list on the content of the
// export, because the answers name objects of its consumers.
type Checks struct {
	// Guard authorizes requests.
	Guard authorizer.Authorizer
	// Checker returns the checker.
	Checker func() *evolve.Checker
}

// Name implements [View].
func (v *Checks) Name() string { return "apiexportcheck" }

// Parse implements [View].
func (v *Checks) Parse(rest string) (*Request, error) {
	home, name, _ := strings.Cut(rest, "/")
	if home == "" || name == "" || strings.Contains(name, "/") {
		return nil, notFound(fmt.Sprintf("the path of this view is %s%s/<logical cluster>/<export>", Prefix, v.Name()))
	}
	return newRequest(home, name, home, ""), nil
}

// Plan implements [View].
func (v *Checks) Plan(req *http.Request, r *Request) (*Plan, error) {
	u, _, err := requestOf(req.Context())
	if err != nil {
		return nil, err
	}
	if err := authorize(req.Context(), v.Guard, contentOf(u, "list", r.ID)); err != nil {
		return nil, err
	}
	if req.Method != http.MethodPost {
		return nil, apierrors.NewMethodNotSupported(schema.GroupResource{Group: apisv1alpha1.GroupVersion.Group, Resource: "apiexportchecks"}, req.Method)
	}
	return &Plan{User: u, Reason: "the user may list the content of APIExport " + r.ID, Page: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		answer, err := v.check(req, r)
		if err == nil {
			err = writeJSON(w, answer)
		}
		if err != nil {
			responsewriters.ErrorNegotiated(err, scheme.Codecs, apisv1alpha1.GroupVersion, w, req)
		}
	})}, nil
}

// check answers a request.
func (v *Checks) check(req *http.Request, r *Request) (*apisv1alpha1.APIExportCheck, error) {
	body, err := io.ReadAll(io.LimitReader(req.Body, maxCheck+1))
	switch {
	case err != nil:
		return nil, apierrors.NewBadRequest(err.Error())
	case len(body) > maxCheck:
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("a check has at most %d bytes; create the schemas, and check them by name", maxCheck))
	}
	if err := fair.Grow(req.Context(), fair.Measure(body).Memory()); err != nil {
		return nil, err
	}
	in := &apisv1alpha1.APIExportCheck{}
	if err := json.Unmarshal(body, in); err != nil {
		return nil, apierrors.NewBadRequest("the request is no APIExportCheck: " + err.Error())
	}
	if want := apisv1alpha1.GroupVersion.WithKind("APIExportCheck"); in.GroupVersionKind() != want {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the request is a %s, and must be an APIExportCheck of %s", in.GroupVersionKind(), want.GroupVersion()))
	}
	if n := len(in.Spec.Schemas) + len(in.Spec.Candidates); n > maxCandidates {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%d schemas; check at most %d at a time", n, maxCandidates))
	}
	of := evolve.Request{
		Export: exports.Name{Cluster: r.Home, Name: r.ID}, Schemas: evolve.Schemas{Names: in.Spec.Schemas},
		Limit: in.Spec.Limit, Continue: in.Spec.Continue,
	}
	for i := range in.Spec.Candidates {
		content, err := candidate(req, &in.Spec, &in.Spec.Candidates[i])
		if err != nil {
			return nil, err
		}
		of.Contents = append(of.Contents, content)
	}
	status, err := v.Checker().Check(req.Context(), of)
	if err != nil {
		return nil, err
	}
	in.Spec.Candidates, in.Spec.Conversions = nil, nil // the client has them
	in.Status = *status
	return in, nil
}

// candidate returns the content of a schema that is not stored, which must be valid like one that
// is.
func candidate(req *http.Request, spec *apisv1alpha1.APIExportCheckSpec, s *apisv1alpha1.APIResourceSchema) (*catalog.Content, error) {
	kind := schema.GroupKind{Group: apisv1alpha1.GroupVersion.Group, Kind: "APIResourceSchema"}
	crd, err := s.CustomResourceDefinition()
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if errs := define.Check(req.Context(), crd); len(errs) > 0 {
		return nil, apierrors.NewInvalid(kind, s.Name, errs)
	}
	content, err := exports.ContentOf(crd)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	for i := range spec.Conversions {
		if c := &spec.Conversions[i]; c.Name == s.Name {
			rules, err := catalog.NewRules(&c.Spec)
			if err != nil {
				return nil, apierrors.NewBadRequest(err.Error())
			}
			return rules.Of(content), nil
		}
	}
	return content, nil
}
