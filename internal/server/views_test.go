package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	corev1alpha1 "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
)

// A viewer accesses the clusters of a view, all or one.
type viewer struct {
	t      *testing.T
	server *running
	url    string // path of the view
	as     user.Info
}

// initializing and terminating return the view of an initializer or terminator for user u.
func (c *tenant) initializing(id string, u user.Info) *viewer {
	return &viewer{c.t, c.server, "/services/initializingworkspaces/" + id + "/clusters/", u}
}

func (c *tenant) terminating(id string, u user.Info) *viewer {
	return &viewer{c.t, c.server, "/services/terminatingworkspaces/" + id + "/clusters/", u}
}

func (v *viewer) config(at string) *rest.Config {
	config := v.server.InProcess("root", v.as)
	config.Host = "http://kcp" + v.url + at
	return config
}

// clusters returns the client of LogicalClusters for the whole view or for one of its
// clusters.
func (v *viewer) clusters(at string) dynamic.ResourceInterface {
	v.t.Helper()
	return must(dynamic.NewForConfig(v.config(at)))(v.t).Resource(logicalClusters)
}

func (v *viewer) kube(at cluster.Name) kubernetes.Interface {
	v.t.Helper()
	return must(kubernetes.NewForConfig(v.config(string(at))))(v.t)
}

// names returns the clusters of the objects in a list.
func names(list *unstructured.UnstructuredList) []string {
	var all []string
	for i := range list.Items {
		all = append(all, string(cluster.Of(&list.Items[i])))
	}
	slices.Sort(all)
	return all
}

// finish removes a name from a list in the status of a LogicalCluster, through a view.
func finish(ctx context.Context, clusters dynamic.ResourceInterface, field, id string) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error { // with loops of the server
		l, err := clusters.Get(ctx, "cluster", metav1.GetOptions{})
		if err != nil {
			return err
		}
		all, _, _ := unstructured.NestedStringSlice(l.Object, "status", field)
		left := slices.DeleteFunc(all, func(s string) bool { return s == id })
		if err := unstructured.SetNestedStringSlice(l.Object, left, "status", field); err != nil {
			return err
		}
		_, err = clusters.UpdateStatus(ctx, l, metav1.UpdateOptions{})
		return err
	})
}

// become sets the phase and the lists of initializers or terminators of the tenant's cluster.
func (c *tenant) become(phase string, lists map[string][]string) {
	c.t.Helper()
	patch := map[string]any{"phase": phase}
	for field, ids := range lists {
		patch[field] = ids
	}
	body := fmt.Appendf(nil, `{"status":%s}`, must(jsonOf(patch))(c.t))
	if _, err := c.any.Resource(logicalClusters).Patch(c.t.Context(), "cluster", types.MergePatchType, body, metav1.PatchOptions{}, "status"); err != nil {
		c.t.Fatal(err)
	}
}

// mayVerb grants a user a verb on the workspace type kind.
func (c *tenant) mayVerb(name, verb, kind string) {
	c.t.Helper()
	_, err := c.kube.RbacV1().ClusterRoles().Create(c.t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: strings.ReplaceAll(name, ":", "-") + "-" + verb + "-" + kind},
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{verb}, APIGroups: []string{"tenancy.kcp.io"}, Resources: []string{"workspacetypes"}, ResourceNames: []string{kind}},
			{Verbs: []string{"access"}, NonResourceURLs: []string{"/"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	_, err = c.kube.RbacV1().ClusterRoleBindings().Create(c.t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: strings.ReplaceAll(name, ":", "-") + "-" + verb + "-" + kind},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: strings.ReplaceAll(name, ":", "-") + "-" + verb + "-" + kind},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
}

func TestAViewHasTheClustersThatWaitForAnInitializer(t *testing.T) {
	t.Parallel()
	home := newTenant(t)
	id := string(home.name) + ":web"
	home.mayVerb("ina", "initialize", "web")
	a, b, other := home.workspace("a"), home.workspace("b"), home.workspace("other")
	ready := home.workspace("ready")
	_ = ready
	for _, w := range []*tenant{a, b} {
		w.become("Initializing", map[string][]string{"initializers": {id}})
	}
	other.become("Initializing", map[string][]string{"initializers": {"root:something"}})
	ina := home.initializing(id, as("ina"))

	list := must(ina.clusters("*").List(t.Context(), metav1.ListOptions{}))(t)
	want := []string{string(a.name), string(b.name)}
	slices.Sort(want)
	if got := names(list); !slices.Equal(got, want) {
		t.Fatalf("in the view are %v, not %v", got, want)
	}
	w := must(ina.clusters("*").Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}))(t)
	defer w.Stop()
	// One cluster enters the view, one changes and one leaves.
	other.become("Initializing", map[string][]string{"initializers": {"root:something", id}})
	if err := finish(t.Context(), ina.clusters(string(a.name)), "initializers", id); err != nil {
		t.Fatal(err)
	}
	home.await(workspaces, "", "a", func(o *unstructured.Unstructured) bool { return text(o, "status", "phase") == "Ready" })
	got := map[string]watch.EventType{}
	for len(got) < 2 {
		e := unmodified(w)
		o, ok := e.Object.(*unstructured.Unstructured)
		if !ok {
			t.Fatalf("the watch has %v", e)
		}
		if e.Type != watch.Modified { // for example a change of a condition
			got[string(cluster.Of(o))] = e.Type
		}
	}
	if want := map[string]watch.EventType{string(other.name): watch.Added, string(a.name): watch.Deleted}; !maps.Equal(got, want) {
		t.Errorf("events are %v, not %v", got, want)
	}
	if _, err := ina.clusters(string(a.name)).Get(t.Context(), "cluster", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("one that has left the view: %v", err)
	}
}

func TestOnlyItsOwnInitializerCanBeRemovedThroughAView(t *testing.T) {
	t.Parallel()
	home := newTenant(t)
	id := string(home.name) + ":web"
	home.mayVerb("ina", "initialize", "web")
	w := home.workspace("w")
	w.become("Initializing", map[string][]string{"initializers": {"root:first", id, "root:last"}})
	ina := home.initializing(id, as("ina")).clusters(string(w.name))
	for name, patch := range map[string]string{
		"nothing":       `{"status":{"initializers":["root:first","` + id + `","root:last"]}}`,
		"another":       `{"status":{"initializers":["` + id + `","root:last"]}}`,
		"all":           `{"status":{"initializers":[]}}`,
		"one added":     `{"status":{"initializers":["root:first","root:last","root:more"]}}`,
		"another order": `{"status":{"initializers":["root:last","root:first"]}}`,
		"the phase too": `{"status":{"phase":"Ready","initializers":["root:first","root:last"]}}`,
		"terminators":   `{"status":{"terminators":["root:more"],"initializers":["root:first","root:last"]}}`,
		"a condition":   `{"status":{"conditions":[{"type":"A","status":"True","lastTransitionTime":"2020-01-01T00:00:00Z"}],"initializers":["root:first","root:last"]}}`,
	} {
		_, err := ina.Patch(t.Context(), "cluster", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), fmt.Sprintf("only removing the %q initializer is supported", id)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	mine := []byte(`{"metadata":{"labels":{"more":"x"}},"spec":{"directlyDeletable":true},"status":{"initializers":["root:first","root:last"]}}`)
	for name, try := range map[string]func() error{
		"update": func() error {
			l := must(ina.Get(t.Context(), "cluster", metav1.GetOptions{}))(t)
			_, err := ina.Update(t.Context(), l, metav1.UpdateOptions{})
			return err
		},
		"patch": func() error {
			_, err := ina.Patch(t.Context(), "cluster", types.MergePatchType, mine, metav1.PatchOptions{})
			return err
		},
		"delete": func() error { return ina.Delete(t.Context(), "cluster", metav1.DeleteOptions{}) },
		"delete all": func() error {
			return ina.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
		},
		"create": func() error {
			l := must(ina.Get(t.Context(), "cluster", metav1.GetOptions{}))(t)
			l.SetResourceVersion("")
			_, err := ina.Create(t.Context(), l, metav1.CreateOptions{})
			return err
		},
	} {
		if err := try(); !apierrors.IsMethodNotSupported(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A dry run changes nothing, and a write changes only the status.
	for _, dry := range [][]string{{metav1.DryRunAll}, nil} {
		done := must(ina.Patch(t.Context(), "cluster", types.MergePatchType, mine, metav1.PatchOptions{DryRun: dry}, "status"))(t)
		left, _, _ := unstructured.NestedStringSlice(done.Object, "status", "initializers")
		if !slices.Equal(left, []string{"root:first", "root:last"}) || text(done, "spec", "directlyDeletable") == "true" || done.GetLabels()["more"] != "" {
			t.Errorf("after it: %v", done.Object)
		}
	}
	key, _ := corev1alpha1.Initializer(id).Label()
	first, value := corev1alpha1.Initializer("root:first").Label()
	l := must(w.any.Resource(logicalClusters).Get(t.Context(), "cluster", metav1.GetOptions{}))(t)
	if _, has := l.GetLabels()[key]; has || l.GetLabels()[first] != value || l.GetLabels()[corev1alpha1.PhaseLabel] != "Initializing" {
		t.Errorf("labels do not say what the status says: %v", l.GetLabels())
	}
	if _, err := ina.Patch(t.Context(), "cluster", types.MergePatchType, mine, metav1.PatchOptions{}, "status"); !apierrors.IsNotFound(err) {
		t.Errorf("twice: %v", err)
	}
}

func TestAnInitializerActsAsWhoMadeTheWorkspace(t *testing.T) {
	t.Parallel()
	home := newTenant(t)
	id := string(home.name) + ":web"
	home.mayVerb("ina", "initialize", "web")
	alice := home.allow("alice")
	w := alice.workspace("w")
	w.become("Initializing", map[string][]string{"initializers": {id}})
	ina := home.initializing(id, as("ina"))

	maps := ina.kube(w.name).CoreV1().ConfigMaps("default")
	must(maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, metav1.CreateOptions{}))(t)
	review := must(ina.kube(w.name).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}))(t)
	if u := review.Status.UserInfo; u.Username != "alice" || slices.Contains(u.Groups, user.SystemPrivilegedGroup) {
		t.Errorf("it acts as %v", u)
	}
	watching := must(maps.Watch(t.Context(), metav1.ListOptions{}))(t)
	defer watching.Stop()
	<-watching.ResultChan() // the existing cluster

	if err := finish(t.Context(), ina.clusters(string(w.name)), "initializers", id); err != nil {
		t.Fatal(err)
	}
	for range watching.ResultChan() { // until the watch ends
	}
	if _, err := maps.List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("after it has finished: %v", err)
	}
	nowhere := ina.kube(cluster.NewName()).CoreV1().ConfigMaps("default")
	if _, err := nowhere.List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("in a cluster that is not there: %v", err)
	}
}

func jsonOf(v any) ([]byte, error) { return json.Marshal(v) }
