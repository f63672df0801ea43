package pods

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/unforked/kcp"
)

// No owner of physical clusters, and no consumer, takes all that answers may weigh.
func TestTenantsShareWeight(t *testing.T) {
	l := newLimits()
	got := func(of owners) (n int64) {
		b := (&results{limits: l, owners: of}).budget()
		for n = 0; b.take(1 << 20); n++ {
		}
		return n
	}
	if n := got(owners{"a", "x"}); n != heldByTenant>>21 {
		t.Errorf("a consumer gets %d MiB of the answers of one owner", n)
	}
	if n := got(owners{"a", "y"}); n == 0 {
		t.Error("another consumer gets nothing")
	}
	for _, compute := range []kcp.ClusterName{"b", "c", "d", "e"} {
		for _, consumer := range []kcp.ClusterName{"x", "y", "z"} {
			got(owners{compute, consumer})
		}
	}
	if n := got(owners{"new", "new"}); n == 0 {
		t.Errorf("four owners take %d MiB, and leave nothing", l.all>>20)
	}
}

// Requests wait for room, but not for each other, nor for what they have themselves.
func TestRequestsWaitForRoom(t *testing.T) {
	for name, c := range map[string]struct {
		first, second, asks int64 // what two requests have, and what each asks for
		now                 bool  // whether the second is told at once
	}{
		"for another":               {heldAlone, 0, 1 << 20, false},
		"for itself":                {0, heldAlone, 1 << 20, true},
		"for each other":            {heldAlone / 2, heldAlone / 2, 1 << 20, true},
		"for what is never allowed": {0, 0, heldAlone + 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimits()
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				a, b := &results{limits: l, owners: owners{"o", "c"}}, &results{limits: l, owners: owners{"o", "c"}}
				one, two := a.budget(), b.budget()
				if one.keep(c.first) != nil || two.keep(c.second) != nil {
					t.Fatal("no room")
				}
				ready := make(chan error, 1)
				if name == "for each other" {
					go func() { ready <- one.reserve(ctx, c.asks) }()
					synctest.Wait()
				} else {
					time.AfterFunc(time.Second, one.end)
				}
				err := two.reserve(ctx, c.asks)
				if (err != nil) != c.now || c.now != (time.Since(start) == 0) {
					t.Errorf("after %s: %v", time.Since(start), err)
				}
				two.end()
				if name == "for each other" {
					if err := <-ready; err != nil {
						t.Errorf("both fail: %v", err)
					}
				}
				one.end()
				a.end()
				b.end()
				if l.all != 0 || len(l.weights.of) > 0 || len(l.patient) > 0 || a.kept != 0 || b.kept != 0 {
					t.Errorf("left: %+v", l.weights)
				}
				full := (&results{limits: l, owners: owners{"o", "c"}}).budget()
				if err := full.reserve(ctx, heldAlone); err != nil {
					t.Error(err)
				}
				if err := two.reserve(ctx, c.asks); err == nil {
					t.Error("there is room")
				}
			})
		})
	}
}

// A target that does not answer takes no room, and one that does waits for it.
func TestAnswersWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of := onePart()
		silent := make(chan struct{})
		p := answering(func(r *http.Request) *http.Response {
			<-silent
			return respond(http.StatusOK, "application/json", strings.NewReader(typicalPage(pageSize, false)))
		}, of)
		c, err := p.begin(t.Context(), of)
		if err != nil {
			t.Fatal(err)
		}
		defer c.end()
		listed := make(chan error, 1)
		list := func(ctx context.Context) {
			_, err := c.list(ctx, metav1.ListOptions{}, func([]corev1.Pod) (int64, error) { return 0, nil })
			listed <- err
		}
		go list(t.Context())
		synctest.Wait()
		full := p.results(of.workspace).budget()
		if err := full.reserve(t.Context(), heldAlone); err != nil {
			t.Fatal("a target that does not answer takes room")
		}
		close(silent)
		time.AfterFunc(time.Minute, full.end)
		start := time.Now()
		if err := <-listed; err != nil || time.Since(start) != time.Minute {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
		full = p.results(of.workspace).budget()
		if err := full.reserve(t.Context(), heldAlone); err != nil {
			t.Fatal(err)
		}
		defer full.end()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go list(ctx)
		if err := <-listed; err == nil || !strings.Contains(err.Error(), "too much to answer") {
			t.Errorf("got %v", err)
		}
	})
}

// The weight of a list stays until its request has no use for it, and that of a part that fails does not.
func TestListsWeighUntilTheyAreSent(t *testing.T) {
	east, west := onePart(), onePart()
	west.key, west.workspace = otherKey, east.workspace
	east.workspace.parts = []*part{east, west}
	p := answering(func(r *http.Request) *http.Response {
		body := io.Reader(strings.NewReader(typicalPage(10, strings.Contains(r.URL.Path, west.locator().Physical()))))
		if r.URL.Query().Has("continue") {
			body = strings.NewReader("{") // west fails after a page
		}
		return respond(http.StatusOK, "application/json", body)
	}, east, west)
	list, kept, failed := (&store{Pods: p}).merged(t.Context(), east.workspace, selects(nil))
	if len(list.Items) != 10 || len(failed) != 1 || failed[west] == nil {
		t.Errorf("%d pods, failed: %v", len(list.Items), failed)
	}
	weight := int64(0)
	for i := range list.Items {
		weight += memoryOf(&list.Items[i])
	}
	if kept.kept < weight || kept.kept > 2*weight || p.limits.all != kept.kept {
		t.Errorf("%d bytes are held, and the list has %d", p.limits.all, weight)
	}
	kept.end()
	if p.limits.all != 0 || len(p.limits.used) > 0 {
		t.Errorf("left: %d, %v", p.limits.all, p.limits.used)
	}
}

// A tenant that has nothing else can list 5,000 usual pods in each of 5 physical clusters.
func TestRoomForTypicalPods(t *testing.T) {
	of := onePart()
	of.workspace.parts = []*part{of}
	page := typicalPage(pageSize, false)
	p := answering(func(*http.Request) *http.Response {
		return respond(http.StatusOK, "application/json", strings.NewReader(page))
	}, of)
	var s scale
	used, err := s.weigh([]byte(page))
	if err != nil || used > pageWeight {
		t.Errorf("a page weighs %d KiB, %v", used>>10, err)
	}
	if bytes := len(page) * mostPods / pageSize; bytes > mostBytes {
		t.Errorf("%d pods have %d MiB", mostPods, bytes>>20)
	}
	list, kept, _ := (&store{Pods: p}).merged(t.Context(), of.workspace, selects(nil))
	defer kept.end()
	if len(list.Items) != pageSize {
		t.Fatalf("%d pods", len(list.Items))
	}
	if all := kept.kept * 5 * mostPods / pageSize; all+pageWeight > heldAlone {
		t.Errorf("a pod has %d bytes, weighs %d and then %d: all weigh %d MiB", len(page)/pageSize, used/pageSize, kept.kept/pageSize, all>>20)
	}
}

// A decoded answer takes at most as much memory as was reserved for its bytes.
func TestWeightIsMemory(t *testing.T) {
	members := &strings.Builder{}
	for i := range 5000 {
		fmt.Fprintf(members, `"%x":"",`, i)
	}
	for name, text := range map[string]string{
		"typical":     typicalPage(10, false),
		"pods":        `{"items":[` + strings.Repeat(`{},`, 1000) + `{}]}`,
		"containers":  `{"items":[{"spec":{"containers":[` + strings.Repeat(`null,`, 1000) + `null]}}]}`,
		"statuses":    `{"items":[{"status":{"containerStatuses":[` + strings.Repeat(`{},`, 1000) + `{}]}}]}`,
		"labels":      `{"items":[{"metadata":{"labels":{` + members.String() + `"a":"b"}}}]}`,
		"small maps":  `{"items":[` + strings.Repeat(`{"metadata":{"labels":{"":""},"annotations":{"":""}}},`, 1000) + `{}]}`,
		"empty texts": `{"items":[{"spec":{"containers":[{"args":[` + strings.Repeat(`"",`, 1000) + `""]}]}}]}`,
	} {
		var s scale
		weight, err := s.weigh([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		list := &corev1.PodList{}
		if err := json.Unmarshal([]byte(text), list); err != nil {
			t.Fatal(err)
		}
		if n := memoryOf(list); n > weight {
			t.Errorf("%s: %d bytes of JSON weigh %d, and take %d", name, len(text), weight, n)
		}
	}
}

// The scale takes any text, and no text weighs less than its bytes.
func FuzzScale(f *testing.F) {
	f.Add(`{"a":[{},{"b":"[,\\\""},null]}`)
	f.Add(`{"a":{"b":"","c":":"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var whole, parts scale
		weight, err := whole.weigh([]byte(text))
		sum := int64(0)
		for i := range len(text) {
			n, bad := parts.weigh([]byte(text[i : i+1]))
			if sum += n; bad != nil {
				return
			}
		}
		if err == nil && (weight != sum || weight < int64(len(text))) {
			t.Errorf("%q weighs %d, and its bytes %d", text, weight, sum)
		}
		var value any
		if json.Unmarshal([]byte(text), &value) == nil && err == nil && weight < least(value) {
			t.Errorf("%q weighs %d", text, weight)
		}
	})
}

// least returns the least weight of a value.
func least(value any) (n int64) {
	switch v := value.(type) {
	case []any:
		for _, one := range v {
			n += elementWeight + least(one)
		}
	case map[string]any:
		for _, one := range v {
			n += memberWeight + least(one)
		}
	}
	return n
}

// typicalPage is a page of pods as a cluster has them.
func typicalPage(n int, more bool) string {
	one := `{"metadata":{"name":"web-7d4b9c6f5d-x2x9k","generateName":"web-7d4b9c6f5d-","namespace":"kcp-1a2b3c4d5e6f","uid":"0f0e1d2c-3b4a-5968-7786-95a4b3c2d1e0","resourceVersion":"123456789","creationTimestamp":"2026-01-02T03:04:05Z","labels":{"app":"web","app.kubernetes.io/name":"web","app.kubernetes.io/instance":"web","pod-template-hash":"7d4b9c6f5d"},"annotations":{"prometheus.io/scrape":"true","prometheus.io/port":"8080","kubectl.kubernetes.io/restartedAt":"2026-01-02T03:04:05Z"},"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-7d4b9c6f5d","uid":"1f0e1d2c-3b4a-5968-7786-95a4b3c2d1e0","controller":true,"blockOwnerDeletion":true}],"managedFields":[` +
		`{"manager":"kube-controller-manager","operation":"Update","apiVersion":"v1","time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:annotations":{".":{},"f:prometheus.io/scrape":{},"f:prometheus.io/port":{},"f:kubectl.kubernetes.io/restartedAt":{}},"f:generateName":{},"f:labels":{".":{},"f:app":{},"f:app.kubernetes.io/name":{},"f:app.kubernetes.io/instance":{},"f:pod-template-hash":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"1f0e1d2c-3b4a-5968-7786-95a4b3c2d1e0\"}":{}}},"f:spec":{"f:automountServiceAccountToken":{},"f:containers":{"k:{\"name\":\"web\"}":{".":{},"f:args":{},"f:env":{".":{},"k:{\"name\":\"A\"}":{".":{},"f:name":{},"f:value":{}},"k:{\"name\":\"B\"}":{".":{},"f:name":{},"f:valueFrom":{".":{},"f:secretKeyRef":{}}},"k:{\"name\":\"C\"}":{".":{},"f:name":{},"f:value":{}}},"f:image":{},"f:imagePullPolicy":{},"f:livenessProbe":{".":{},"f:failureThreshold":{},"f:httpGet":{".":{},"f:path":{},"f:port":{},"f:scheme":{}},"f:periodSeconds":{},"f:successThreshold":{},"f:timeoutSeconds":{}},"f:name":{},"f:ports":{".":{},"k:{\"containerPort\":8080,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{},"f:protocol":{}}},"f:readinessProbe":{".":{},"f:failureThreshold":{},"f:httpGet":{".":{},"f:path":{},"f:port":{},"f:scheme":{}},"f:periodSeconds":{},"f:successThreshold":{},"f:timeoutSeconds":{}},"f:resources":{".":{},"f:limits":{".":{},"f:memory":{}},"f:requests":{".":{},"f:cpu":{},"f:memory":{}}},"f:securityContext":{},"f:terminationMessagePath":{},"f:terminationMessagePolicy":{},"f:volumeMounts":{".":{},"k:{\"mountPath\":\"/etc/web\"}":{".":{},"f:mountPath":{},"f:name":{}}}}},"f:dnsPolicy":{},"f:enableServiceLinks":{},"f:restartPolicy":{},"f:schedulerName":{},"f:securityContext":{},"f:terminationGracePeriodSeconds":{},"f:volumes":{".":{},"k:{\"name\":\"config\"}":{".":{},"f:configMap":{".":{},"f:defaultMode":{},"f:name":{}},"f:name":{}}}}}},` +
		`{"manager":"kubelet","operation":"Update","apiVersion":"v1","time":"2026-01-02T03:04:15Z","fieldsType":"FieldsV1","fieldsV1":{"f:status":{"f:conditions":{"k:{\"type\":\"ContainersReady\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"Initialized\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"Ready\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}}},"f:containerStatuses":{},"f:hostIP":{},"f:hostIPs":{},"f:phase":{},"f:podIP":{},"f:podIPs":{".":{},"k:{\"ip\":\"10.244.1.2\"}":{".":{},"f:ip":{}}},"f:startTime":{}}},"subresource":"status"}]},` +
		`"spec":{"volumes":[{"name":"config","configMap":{"name":"web","defaultMode":420}}],"containers":[{"name":"web","image":"registry.example.com/shop/web:1.2.3","args":["--port=8080","--v=2"],"ports":[{"containerPort":8080,"protocol":"TCP"}],"env":[{"name":"A","value":"https://db.example.com"},{"name":"B","valueFrom":{"secretKeyRef":{"name":"db","key":"password"}}},{"name":"C","value":"c"}],"resources":{"limits":{"memory":"256Mi"},"requests":{"cpu":"100m","memory":"128Mi"}},"volumeMounts":[{"name":"config","mountPath":"/etc/web"}],"livenessProbe":{"httpGet":{"path":"/healthz","port":8080,"scheme":"HTTP"},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3},"readinessProbe":{"httpGet":{"path":"/readyz","port":8080,"scheme":"HTTP"},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent","securityContext":{"allowPrivilegeEscalation":false}}],"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","serviceAccountName":"default","serviceAccount":"default","automountServiceAccountToken":false,"nodeName":"ip-10-0-1-2.eu-west-1.compute.internal","securityContext":{},"schedulerName":"default-scheduler","tolerations":[{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300},{"key":"node.kubernetes.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}],"priority":0,"enableServiceLinks":true,"preemptionPolicy":"PreemptLowerPriority"},` +
		`"status":{"phase":"Running","conditions":[{"type":"PodReadyToStartContainers","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-02T03:04:10Z"},{"type":"Initialized","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-02T03:04:05Z"},{"type":"Ready","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-02T03:04:15Z"},{"type":"ContainersReady","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-02T03:04:15Z"},{"type":"PodScheduled","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-02T03:04:05Z"}],"hostIP":"10.0.1.2","hostIPs":[{"ip":"10.0.1.2"}],"podIP":"10.244.1.2","podIPs":[{"ip":"10.244.1.2"}],"startTime":"2026-01-02T03:04:05Z","containerStatuses":[{"name":"web","state":{"running":{"startedAt":"2026-01-02T03:04:08Z"}},"lastState":{},"ready":true,"restartCount":0,"image":"registry.example.com/shop/web:1.2.3","imageID":"registry.example.com/shop/web@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef","containerID":"containerd://0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef","started":true,"volumeMounts":[{"name":"config","mountPath":"/etc/web"}]}],"qosClass":"Burstable"}}`
	next := ""
	if more {
		next = `,"continue":"more"`
	}
	return `{"apiVersion":"v1","kind":"PodList","metadata":{"resourceVersion":"1"` + next + `},"items":[` + strings.TrimSuffix(strings.Repeat(one+",", n), ",") + `]}`
}
