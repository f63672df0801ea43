package server_test

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func selfReview() *authenticationv1.SelfSubjectReview { return &authenticationv1.SelfSubjectReview{} }

// account creates a service account that may read config maps in the namespace default, and
// returns a token of it.
func (c *tenant) account(name string) string {
	c.t.Helper()
	ctx := c.t.Context()
	if _, err := c.kube.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	bind := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
	}
	if _, err := c.kube.RbacV1().RoleBindings("default").Create(ctx, bind, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	r := must(c.kube.CoreV1().ServiceAccounts("default").CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{}))(c.t)
	return r.Status.Token
}

func TestBoundTokens(t *testing.T) {
	t.Parallel()
	c, other := newTenant(t), newTenant(t)
	token := c.account("robot")
	other.account("robot") // another account with the same name and rights
	read := func(host string) error {
		config := c.withToken(token)
		config.Host = host
		client := must(kubernetes.NewForConfig(config))(t)
		_, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		return err
	}
	at := func(c *tenant) string { return c.server.url + "/clusters/" + string(c.name) }
	if err := read(at(c)); err != nil {
		t.Errorf("in its cluster: %v", err)
	}
	if err := read(c.server.url); err != nil {
		t.Errorf("without a cluster in the URL, as in-cluster clients: %v", err)
	}
	if err := read(at(other)); !apierrors.IsForbidden(err) {
		t.Errorf("in another cluster: %v", err)
	}
	if err := c.kube.CoreV1().ServiceAccounts("default").Delete(t.Context(), "robot", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := read(at(c)); !apierrors.IsUnauthorized(err) {
		t.Errorf("after its account was deleted: %v", err)
	}
}

func TestTokenReviews(t *testing.T) {
	t.Parallel()
	c, other := newTenant(t), newTenant(t)
	token := c.account("robot")
	review := func(c *tenant, token string) authenticationv1.TokenReviewStatus {
		r := must(c.kube.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{}))(t)
		return r.Status
	}
	if s := review(c, token); !s.Authenticated || s.User.Username != "system:serviceaccount:default:robot" {
		t.Errorf("in its cluster: %+v", s)
	}
	if s := review(other, token); s.User.Username == "system:serviceaccount:default:robot" {
		t.Errorf("in another cluster it is one of that cluster: %+v", s)
	}
	if s := review(c, token+"x"); s.Authenticated {
		t.Errorf("forged: %+v", s)
	}
}

func TestAccessReviews(t *testing.T) {
	t.Parallel()
	c, other := newTenant(t), newTenant(t)
	token := c.account("robot")
	list := &authorizationv1.ResourceAttributes{Verb: "list", Resource: "configmaps", Namespace: "default"}
	for name, test := range map[string]struct {
		in   *tenant
		want bool
	}{"its cluster": {c, true}, "another": {other, false}} {
		r := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:default:robot", Groups: []string{"system:serviceaccounts", "system:authenticated"}, ResourceAttributes: list,
		}}
		if got := must(test.in.kube.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), r, metav1.CreateOptions{}))(t); got.Status.Allowed != test.want {
			t.Errorf("%s: %+v", name, got.Status)
		}
		local := &authorizationv1.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, Spec: r.Spec}
		if got := must(test.in.kube.AuthorizationV1().LocalSubjectAccessReviews("default").Create(t.Context(), local, metav1.CreateOptions{}))(t); got.Status.Allowed != test.want {
			t.Errorf("%s, in its namespace: %+v", name, got.Status)
		}
	}
	robot := must(kubernetes.NewForConfig(c.withToken(token)))(t)
	self := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: list}}
	if got := must(robot.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), self, metav1.CreateOptions{}))(t); !got.Status.Allowed {
		t.Errorf("of itself: %+v", got.Status)
	}
	rules := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"}}
	if got := must(robot.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), rules, metav1.CreateOptions{}))(t); len(got.Status.ResourceRules) < 3 || got.Status.Incomplete {
		t.Errorf("its rules: %+v", got.Status)
	}
	who := must(robot.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), selfReview(), metav1.CreateOptions{}))(t)
	if who.Status.UserInfo.Username != "system:serviceaccount:default:robot" {
		t.Errorf("it is %+v", who.Status.UserInfo)
	}
}
