package authn

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/apis/authentication"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// TokenReviews serves tokenreviews as Kubernetes does. It authenticates the token for the
// logical cluster of the request.
type TokenReviews struct {
	authenticators *Authenticators
}

var (
	_ rest.Storage              = (*TokenReviews)(nil)
	_ rest.Scoper               = (*TokenReviews)(nil)
	_ rest.Creater              = (*TokenReviews)(nil)
	_ rest.SingularNameProvider = (*TokenReviews)(nil)
)

// NewTokenReviews returns TokenReviews that authenticate tokens with a.
func NewTokenReviews(a *Authenticators) *TokenReviews { return &TokenReviews{a} }

// New implements [rest.Storage].
func (*TokenReviews) New() runtime.Object { return &authentication.TokenReview{} }

// Destroy implements [rest.Storage].
func (*TokenReviews) Destroy() {}

// NamespaceScoped implements [rest.Scoper].
func (*TokenReviews) NamespaceScoped() bool { return false }

// GetSingularName implements [rest.SingularNameProvider].
func (*TokenReviews) GetSingularName() string { return "tokenreview" }

// Create implements [rest.Creater].
func (t *TokenReviews) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	review, ok := obj.(*authentication.TokenReview)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("a %T is not a TokenReview", obj))
	}
	if ns := request.NamespaceValue(ctx); ns != "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("a TokenReview is not in a namespace, but the request names %q", ns))
	}
	if review.Spec.Token == "" {
		return nil, apierrors.NewBadRequest("spec.token is missing: a TokenReview needs the token to review")
	}
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if strings.ContainsFunc(review.Spec.Token, unicode.IsSpace) {
		review.Status = authentication.TokenReviewStatus{} // a header would be cut off at the space
		return review, nil
	}
	audiences := authenticator.Audiences(review.Spec.Audiences)
	if len(audiences) == 0 {
		audiences = t.authenticators.Audiences
	}
	response, ok, err := t.authenticators.AuthenticateRequest(bearing(ctx, review.Spec.Token, audiences))
	review.Status = authentication.TokenReviewStatus{Authenticated: ok}
	if err != nil {
		review.Status.Error = reviewError(ctx, err)
	}
	if response == nil || response.User == nil {
		return review, nil
	}
	if len(audiences) > 0 && len(audiences.Intersect(response.Audiences)) == 0 {
		return nil, apierrors.NewInternalError(errors.New("the token was accepted for none of the audiences asked about"))
	}
	review.Status.Audiences = response.Audiences
	review.Status.User = authentication.UserInfo{
		Username: response.User.GetName(),
		UID:      response.User.GetUID(),
		Groups:   response.User.GetGroups(),
		Extra:    map[string]authentication.ExtraValue{},
	}
	for key, values := range response.User.GetExtra() {
		review.Status.User.Extra[key] = values
	}
	return review, nil
}

// reviewError returns the text for an error of authentication. Only operators get the error
// itself: it may name identity providers of other workspaces, or addresses of webhooks.
func reviewError(ctx context.Context, err error) string {
	c, _ := cluster.From(ctx)
	if u, ok := request.UserFrom(ctx); ok && (auth.PrivilegedIn(c, u) || auth.IsMember(c, u, auth.AdminGroup)) {
		return err.Error()
	}
	klog.FromContext(ctx).V(2).Info("A token under review was not verified", "reason", err.Error())
	return "invalid bearer token" // the text of upstream for every unknown token
}

// bearing returns a request that carries only the token, with the cluster and the deadline
// of ctx. Other values of ctx belong to the request for the review, such as its warnings
// and audit annotations.
func bearing(ctx context.Context, token string, audiences authenticator.Audiences) *http.Request {
	inner := context.Context(withoutValues{ctx})
	if c, ok := cluster.From(ctx); ok {
		inner = cluster.With(inner, c)
	}
	if len(audiences) > 0 {
		inner = authenticator.WithAudiences(inner, audiences)
	}
	r := &http.Request{Header: http.Header{"Authorization": {"Bearer " + token}}}
	return r.WithContext(inner)
}

// withoutValues is a context with the deadline of another one, but without its values.
type withoutValues struct{ context.Context }

func (withoutValues) Value(any) any { return nil }
