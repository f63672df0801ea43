package server_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

func configMap(name string, labels map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Data: map[string]string{"k": "v"}}
}

func TestPatchesAndApply(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	accounts, maps := c.kube.CoreV1().ServiceAccounts("default"), c.kube.CoreV1().ConfigMaps("default")
	strategic := func(patch string) *corev1.ServiceAccount {
		t.Helper()
		return must(accounts.Patch(t.Context(), "default", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
	}
	strategic(`{"secrets":[{"name":"a"}]}`)
	if a := strategic(`{"secrets":[{"name":"b"}]}`); len(a.Secrets) != 2 {
		t.Errorf("a list with a key was not merged: %v", a.Secrets)
	}
	if a := strategic(`{"secrets":[{"name":"a","$patch":"delete"}]}`); len(a.Secrets) != 1 || a.Secrets[0].Name != "b" {
		t.Errorf("an element was not taken out: %v", a.Secrets)
	}

	apply := func(manager, value string, force bool) error {
		_, err := maps.Apply(t.Context(), applycorev1.ConfigMap("applied", "default").WithData(map[string]string{"k": value}),
			metav1.ApplyOptions{FieldManager: manager, Force: force})
		return err
	}
	if err := apply("one", "1", false); err != nil {
		t.Fatal(err)
	}
	if err := apply("two", "2", false); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `"one"`) {
		t.Errorf("two managers of one field: %v", err)
	}
	if err := apply("two", "2", true); err != nil {
		t.Error(err)
	}
	before := must(maps.Get(t.Context(), "applied", metav1.GetOptions{}))(t)
	if err := apply("two", "2", false); err != nil {
		t.Error(err)
	}
	after := must(maps.Get(t.Context(), "applied", metav1.GetOptions{}))(t)
	if after.Data["k"] != "2" || after.ResourceVersion != before.ResourceVersion {
		t.Errorf("applying what is there wrote %v at %s, after %s", after.Data, after.ResourceVersion, before.ResourceVersion)
	}
	for _, f := range after.ManagedFields {
		if strings.Contains(f.FieldsV1.GetRawString(), cluster.Annotation) {
			t.Errorf("%s owns the annotation that the server computes", f.Manager)
		}
	}
}

func TestDryRunWritesNothing(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	maps, dry := c.kube.CoreV1().ConfigMaps("default"), []string{metav1.DryRunAll}
	made, err := maps.Create(t.Context(), configMap("m", nil), metav1.CreateOptions{DryRun: dry})
	if err != nil || made.UID == "" || cluster.Of(made) != c.name {
		t.Errorf("created %v, %v", made, err)
	}
	c.await(core("configmaps"), "default", "m", gone)
	if _, err := maps.Create(t.Context(), configMap("m", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Patch(t.Context(), "m", types.MergePatchType, []byte(`{"data":{"k":"w"}}`), metav1.PatchOptions{DryRun: dry}); err != nil {
		t.Error(err)
	}
	if err := maps.Delete(t.Context(), "m", metav1.DeleteOptions{DryRun: dry}); err != nil {
		t.Error(err)
	}
	if m, err := maps.Get(t.Context(), "m", metav1.GetOptions{}); err != nil || m.Data["k"] != "v" {
		t.Errorf("after dry runs there is %v, %v", m, err)
	}
	if _, err := c.kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{DryRun: dry}); err != nil {
		t.Error(err)
	}
	c.await(core("namespaces"), "", "n", gone)
}

func TestFieldValidation(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	create := func(name, how string) error {
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"datum":{},"data":{"a":"1","a":"2"}}`, name)
		return c.kube.CoreV1().RESTClient().Post().Namespace("default").Resource("configmaps").
			Param("fieldValidation", how).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(t.Context()).Error()
	}
	err := create("strict", "Strict")
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), `unknown field "datum"`) || !strings.Contains(err.Error(), `duplicate field "data.a"`) {
		t.Errorf("strict: %v", err)
	}
	for _, how := range []string{"Warn", "Ignore"} {
		if err := create(strings.ToLower(how), how); err != nil {
			t.Errorf("%s: %v", how, err)
		}
	}
}

func TestTables(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	raw := must(c.kube.CoreV1().RESTClient().Get().Namespace("default").Resource("configmaps").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context()))(t)
	var table metav1.Table
	if err := json.Unmarshal(raw, &table); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, column := range table.ColumnDefinitions {
		names = append(names, column.Name)
	}
	if table.Kind != "Table" || !slices.Equal(names, []string{"Name", "Data", "Age"}) || len(table.Rows) != 1 {
		t.Errorf("got %s", raw)
	}
}

func TestListsAreSelectedAndPaged(t *testing.T) {
	t.Parallel()
	c, other := newTenant(t), newTenant(t)
	const count = 12
	for i := range count {
		for _, c := range []*tenant{c, other} {
			m := configMap(fmt.Sprintf("m%02d", i), map[string]string{"even": fmt.Sprint(i%2 == 0)})
			if _, err := c.kube.CoreV1().ConfigMaps("default").Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	list := func(o metav1.ListOptions) *corev1.ConfigMapList {
		t.Helper()
		l := must(c.kube.CoreV1().ConfigMaps("").List(t.Context(), o))(t)
		for _, m := range l.Items {
			if cluster.Of(&m) != c.name {
				t.Errorf("listed %s of cluster %s", m.Name, cluster.Of(&m))
			}
		}
		return l
	}
	if l := list(metav1.ListOptions{LabelSelector: "even=true"}); len(l.Items) != count/2 {
		t.Errorf("%d are even", len(l.Items))
	}
	if l := list(metav1.ListOptions{FieldSelector: "metadata.name=m03"}); len(l.Items) != 1 || l.Items[0].Name != "m03" {
		t.Errorf("by name: %v", l.Items)
	}
	var names []string
	page := list(metav1.ListOptions{Limit: 5, LabelSelector: ""})
	if page.RemainingItemCount == nil || *page.RemainingItemCount != count+1-5 { // including the config map of the certificate
		t.Errorf("after the first page %v remain", page.RemainingItemCount)
	}
	for {
		for _, m := range page.Items {
			names = append(names, m.Name)
		}
		if page.Continue == "" {
			break
		}
		page = list(metav1.ListOptions{Limit: 5, Continue: page.Continue})
	}
	if len(names) != count+1 || !slices.IsSorted(names) {
		t.Errorf("in pages: %v", names)
	}
	secret := tokenSecret("s", "nobody")
	secret.Type, secret.Annotations = corev1.SecretTypeOpaque, nil
	if _, err := c.kube.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if l := must(c.kube.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{FieldSelector: "type=Opaque"}))(t); len(l.Items) != 1 {
		t.Errorf("secrets by type: %v", l.Items)
	}
}

// next returns the next event of a watch.
func next(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			t.Fatal("the watch ended")
		}
		return e
	case <-time.After(patience):
		t.Fatal("no event")
	}
	return watch.Event{}
}

func TestWatchesBeginWithAListAndABookmark(t *testing.T) {
	t.Parallel()
	for name, contentType := range map[string]string{"JSON": runtime.ContentTypeJSON, "protobuf": runtime.ContentTypeProtobuf} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, other := newTenant(t), newTenant(t)
			config := c.config()
			config.ContentType = contentType
			maps := must(kubernetes.NewForConfig(config))(t).CoreV1().ConfigMaps("default")
			for _, c := range []*tenant{c, other} {
				if _, err := c.kube.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("m", nil), metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			yes := true
			w := must(maps.Watch(t.Context(), metav1.ListOptions{
				SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
			}))(t)
			defer w.Stop()
			var first []string
			for {
				e := next(t, w)
				m, ok := e.Object.(*corev1.ConfigMap)
				if !ok {
					t.Fatalf("got %v", e.Object)
				}
				if e.Type == watch.Bookmark {
					if m.Annotations[metav1.InitialEventsAnnotationKey] != "true" {
						t.Errorf("the bookmark says %v", m.Annotations)
					}
					break
				}
				if cluster.Of(m) != c.name {
					t.Errorf("sent %s of cluster %s", m.Name, cluster.Of(m))
				}
				first = append(first, m.Name)
			}
			slices.Sort(first)
			if !slices.Equal(first, []string{"kube-root-ca.crt", "m"}) {
				t.Errorf("it begins with %v", first)
			}
			for _, c := range []*tenant{other, c} {
				if err := c.kube.CoreV1().ConfigMaps("default").Delete(t.Context(), "m", metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			e := next(t, w)
			for e.Type == watch.Bookmark { // for example a periodic one
				e = next(t, w)
			}
			if m, ok := e.Object.(*corev1.ConfigMap); !ok || e.Type != watch.Deleted || cluster.Of(m) != c.name || m.Data["k"] != "v" {
				t.Errorf("then %s %v", e.Type, e.Object)
			}
		})
	}
}

// A reflector for all clusters gets the objects of each cluster. It must not get its initial
// list from a watch.
func TestWatchesOfAllClustersDoNotBeginWithAList(t *testing.T) {
	t.Parallel()
	c, other := newTenant(t), newTenant(t)
	all := must(kubernetes.NewForConfig(c.server.InProcess(string(cluster.All), server.System())))(t)
	yes := true
	_, err := all.CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{
		SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if !apierrors.IsInvalid(err) {
		t.Errorf("it began: %v", err)
	}
	l := must(all.CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.namespace=default"}))(t)
	seen := map[cluster.Name]int{}
	for _, m := range l.Items {
		seen[cluster.Of(&m)]++
	}
	if seen[c.name] != 1 || seen[other.name] != 1 {
		t.Errorf("listed of the clusters %s and %s: %v", c.name, other.name, seen)
	}
	w := must(all.CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + string(c.name), ResourceVersion: l.ResourceVersion}))(t)
	defer w.Stop()
	for _, in := range []*tenant{c, other} {
		if _, err := in.kube.CoreV1().ConfigMaps("default").Create(t.Context(), configMap(string(c.name), nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if m, ok := next(t, w).Object.(*corev1.ConfigMap); !ok || cluster.Of(m) != in.name {
			t.Errorf("sent %v, want one of %s", m, in.name)
		}
	}
}

// Requests for a single object need a cluster, also from administrators.
func TestNothingElseIsServedOfAllClusters(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	all := must(kubernetes.NewForConfig(c.server.InProcess(string(cluster.All), server.System())))(t).CoreV1().RESTClient()
	const maps, lcs = "/api/v1/namespaces/default/configmaps", "/apis/core.kcp.io/v1alpha1/logicalclusters"
	for _, r := range [][3]string{
		{"GET", maps + "/kube-root-ca.crt", "get"}, {"GET", "/api/v1/namespaces/default", "get"}, {"GET", lcs + "/cluster", "get"}, {"GET", lcs + "/cluster/status", "get"},
		{"POST", maps, "create"}, {"PUT", maps + "/kube-root-ca.crt", "update"}, {"PATCH", lcs + "/cluster", "patch"}, {"DELETE", maps + "/kube-root-ca.crt", "delete"},
		{"DELETE", maps, "delete"}, {"POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", "create"},
	} {
		err := all.Verb(r[0]).AbsPath(r[1]).Body([]byte("{}")).Do(t.Context()).Error()
		want := r[2] + " is not possible in all logical clusters at once: only list and watch are in the `*` logical cluster"
		if !apierrors.IsMethodNotSupported(err) || err.Error() != want {
			t.Errorf("%s %s: %v", r[0], r[1], err)
		}
	}
}

func TestProtobuf(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	config := c.config()
	config.ContentType = runtime.ContentTypeProtobuf
	maps := must(kubernetes.NewForConfig(config))(t).CoreV1().ConfigMaps("default")
	made := must(maps.Create(t.Context(), configMap("m", nil), metav1.CreateOptions{}))(t)
	if cluster.Of(made) != c.name {
		t.Errorf("created %v", made)
	}
	made.Data["k"] = "w"
	if _, err := maps.Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
	if l := must(maps.List(t.Context(), metav1.ListOptions{}))(t); len(l.Items) != 2 {
		t.Errorf("listed %v", l.Items)
	}
	raw := must(c.kube.CoreV1().RESTClient().Get().Namespace("default").Resource("configmaps").Name("m").
		SetHeader("Accept", runtime.ContentTypeProtobuf).DoRaw(t.Context()))(t)
	if !strings.HasPrefix(string(raw), "k8s\x00") {
		t.Errorf("asked for protobuf, got %q", raw)
	}
}

func TestEventsExpire(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: "e"},
		InvolvedObject: corev1.ObjectReference{Kind: "ConfigMap", Namespace: "default", Name: "m"},
		Reason:         "Tested", Message: "hello", Type: corev1.EventTypeNormal,
	}
	if _, err := c.kube.CoreV1().Events("default").Create(t.Context(), event, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	same := must(c.kube.EventsV1().Events("default").Get(t.Context(), "e", metav1.GetOptions{}))(t)
	if same.Note != "hello" || same.Regarding.Name != "m" {
		t.Errorf("in events.k8s.io it is %+v", same)
	}
	other := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "f"}, EventTime: metav1.NowMicro(), ReportingController: "example.com/test", ReportingInstance: "i",
		Action: "Testing", Reason: "Tested", Type: corev1.EventTypeNormal, Regarding: corev1.ObjectReference{Kind: "ConfigMap", Namespace: "default", Name: "m"},
	}
	if _, err := c.kube.EventsV1().Events("default").Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if l := must(c.kube.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=m"}))(t); len(l.Items) != 2 {
		t.Errorf("events about it: %v", l.Items)
	}
	etcd := c.server.Store().RawClient()
	for _, name := range []string{"e", "f"} {
		resp := must(etcd.Get(t.Context(), "/registry/n/core/events/-/"+string(c.name)+"/default/"+name))(t)
		if len(resp.Kvs) != 1 || resp.Kvs[0].Lease == 0 {
			t.Errorf("event %s is stored as %v", name, resp.Kvs)
			continue
		}
		kv := resp.Kvs[0]
		left := must(etcd.TimeToLive(t.Context(), clientv3.LeaseID(kv.Lease)))(t)
		if left.GrantedTTL < 3600 || left.GrantedTTL > 3600+60 || left.TTL < 3000 {
			t.Errorf("event %s expires in %d of %d seconds", name, left.TTL, left.GrantedTTL)
		}
	}
}

func TestLeases(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	leases := c.kube.CoordinationV1().Leases("default")
	holder, seconds := "me", int32(15)
	lease := must(leases.Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "l"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds},
	}, metav1.CreateOptions{}))(t)
	stale := lease.DeepCopy()
	if _, err := leases.Update(t.Context(), withHolder(lease, "you"), metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := leases.Update(t.Context(), withHolder(stale, "they"), metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("two took it at once: %v", err)
	}
}

func withHolder(l *coordinationv1.Lease, holder string) *coordinationv1.Lease {
	l.Spec.HolderIdentity = &holder
	return l
}
