package serve

import (
	"fmt"
	"net/http"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/resources/catalog"
)

// refuseUnserved answers 404 to a request for a resource that its cluster does not serve.
// The response is a Status, because clients print its message.
func refuseUnserved(w http.ResponseWriter, req *http.Request, info *request.RequestInfo) {
	gr := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	responsewriters.ErrorNegotiated(unserved(gr), apiextensions.Codecs, gv, w, req)
}

// unserved returns the error for a resource that is not served. Its first words and its
// cause are those that client-go uses for a 404 without a Status. Clients use them to
// distinguish a missing resource from a missing object.
func unserved(gr schema.GroupResource) error {
	why := "this workspace serves no"
	if catalog.IsKubernetesGroup(gr.Group) {
		why = "workspaces run no containers, and this one serves no"
	}
	return notServed(gr, fmt.Sprintf("%s %s; "+
		`"kubectl api-resources" lists what it serves, and an APIBinding or a CustomResourceDefinition adds more (docs/workloads.md, docs/custom-resources.md)`, why, gr))
}

// unservedIdentity returns the error for a resource with an identity that no cluster binds.
func unservedIdentity(gr schema.GroupResource, identity string) error {
	return notServed(gr, fmt.Sprintf("no APIBinding has %s of the identity %.64q; status.identityHash of the APIExport has it", gr, identity))
}

func notServed(gr schema.GroupResource, why string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
		Message: "the server could not find the requested resource: " + why,
		Details: &metav1.StatusDetails{Group: gr.Group, Kind: gr.Resource, Causes: []metav1.StatusCause{
			{Type: metav1.CauseTypeUnexpectedServerResponse, Message: "404 page not found"},
		}},
	}}
}
