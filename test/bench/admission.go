package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/test/child"
)

const (
	hooksPath = "/apis/admissionregistration.k8s.io/v1/"
	// policies is the number of policies beside which config maps are made.
	policies = 10
	// denied is the name of config maps that the policies refuse, which shows that they are in force.
	denied = "denied"
	// inForceWithin is how long a stock server may take until policies are in force.
	inForceWithin = time.Minute
)

// extra is an object that a case makes and deletes again.
type extra struct {
	path   string // of its collection, below the tenant
	object metav1.Object
}

// admission measures what config maps cost beside webhooks and policies. On a stock server these
// apply to all namespaces, so they are deleted between the measurements. Each turn measures all of
// them, in another order, because the more objects a server has, the more a write costs.
func admission(ctx context.Context, b *bench) error {
	sides, done, err := b.sides(ctx)
	if err != nil {
		return err
	}
	defer done()
	all := []*besides{
		{name: "no webhook and policy"},
		{name: "a webhook that does not match", all: []extra{webhookForSecrets()}},
		{name: fmt.Sprintf("%d policies that allow it", policies), all: policiesForConfigMaps()},
	}
	for turn := range admissionTurns * b.plan.rounds {
		for _, s := range sides {
			for i := range all {
				beside := all[(i+turn)%len(all)]
				x, err := b.createBeside(ctx, s, fmt.Sprintf("beside-%d-%d", len(beside.all), turn), beside.all)
				if err != nil {
					return fmt.Errorf("%s: %w", s.subject, err)
				}
				beside.add(s.subject, x)
			}
		}
	}
	for _, beside := range all {
		for _, s := range sides {
			of, samples := "config map create beside "+beside.name, beside.samples[s.subject]
			var whole sample
			var times []float64
			for turn, x := range samples {
				whole.merge(x)
				if none := all[0].samples[s.subject][turn]; none.server > 0 {
					times = append(times, float64(x.each(x.server))/float64(none.each(none.server)))
				}
			}
			b.report.addTime(s.subject, of, "p50", whole.percentile(50))
			b.report.addTime(s.subject, of, "server CPU each", whole.each(whole.server))
			if beside != all[0] && len(times) > 0 {
				b.report.add(s.subject, of, "server CPU, times that of none (median of turns)", plainCount, median(times))
			}
		}
	}
	return nil
}

// admissionTurns is how often each round of a plan measures.
const admissionTurns = 4

// besides are the objects beside which config maps are made.
type besides struct {
	name    string
	all     []extra
	samples map[string][]sample // by subject
}

func (b *besides) add(subject string, x sample) {
	if b.samples == nil {
		b.samples = map[string][]sample{}
	}
	b.samples[subject] = append(b.samples[subject], x)
}

// createBeside measures creations of config maps in a new tenant with some webhooks or policies.
func (b *bench) createBeside(ctx context.Context, s *side, name string, beside []extra) (sample, error) {
	t, err := s.newTenant(ctx, s.clients[0], name)
	if err != nil {
		return sample{}, err
	}
	if err := makeAll(ctx, s.clients[0], t, beside); err != nil {
		return sample{}, err
	}
	if len(beside) > 1 {
		if err := b.awaitPolicies(ctx, s, t); err != nil {
			return sample{}, err
		}
	}
	n := max(b.plan.operations/b.plan.rounds/admissionTurns, len(s.clients))
	create := func(prefix string) operation {
		return func(ctx context.Context, c *client, i int) error {
			return b.create(ctx, c, t.configMaps, fmt.Sprintf("%s-%d", prefix, i))
		}
	}
	if _, err := s.load(ctx, s.clients, max(n/20, len(s.clients)), create("warm")); err != nil {
		return sample{}, err
	}
	x, err := s.load(ctx, s.clients, n, create("object"))
	return x, errors.Join(err, deleteAll(ctx, s.clients[0], t, beside))
}

// awaitPolicies returns when the policies of a tenant are in force.
func (b *bench) awaitPolicies(ctx context.Context, s *side, t tenant) error {
	ctx, cancel := context.WithTimeoutCause(ctx, inForceWithin, errors.New("the policies are not in force"))
	defer cancel()
	for {
		err := b.create(ctx, s.clients[0], t.configMaps, denied)
		if apierrors.IsInvalid(err) {
			return nil
		}
		if err == nil {
			_, err = s.clients[0].Call(ctx, http.MethodDelete, t.configMaps+"/"+denied, jsonType, nil)
		}
		if err != nil {
			return err
		}
		if err := child.Pause(ctx, 10*time.Millisecond); err != nil {
			return context.Cause(ctx)
		}
	}
}

func makeAll(ctx context.Context, c *client, t tenant, all []extra) error {
	for _, m := range all {
		if err := post(ctx, c, base(t)+m.path, m.object); err != nil {
			return err
		}
	}
	return nil
}

func deleteAll(ctx context.Context, c *client, t tenant, all []extra) error {
	for _, m := range all {
		if _, err := c.Call(ctx, http.MethodDelete, base(t)+m.path+"/"+m.object.GetName(), jsonType, nil); err != nil {
			return err
		}
	}
	return nil
}

func rule(resource string) admissionv1.RuleWithOperations {
	return admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Create},
		Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource}},
	}
}

// webhookForSecrets returns a webhook that no request for config maps calls.
func webhookForSecrets() extra {
	none, url := admissionv1.SideEffectClassNone, "https://bench.invalid"
	return extra{hooksPath + "validatingwebhookconfigurations", &admissionv1.ValidatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "ValidatingWebhookConfiguration"},
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "bench.example.com", ClientConfig: admissionv1.WebhookClientConfig{URL: &url}, SideEffects: &none,
			AdmissionReviewVersions: []string{"v1"}, Rules: []admissionv1.RuleWithOperations{rule("secrets")},
		}},
	}}
}

// policiesForConfigMaps returns policies that are evaluated for config maps, and their bindings.
func policiesForConfigMaps() []extra {
	var all []extra
	for i := range policies {
		about := metav1.ObjectMeta{Name: fmt.Sprintf("bench-%d", i)}
		all = append(all, extra{hooksPath + "validatingadmissionpolicies", &admissionv1.ValidatingAdmissionPolicy{
			TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicy"}, ObjectMeta: about,
			Spec: admissionv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: rule("configmaps")}}},
				Validations:      []admissionv1.Validation{{Expression: fmt.Sprintf(`object.metadata.name != "%s" && object.metadata.name.size() < %d`, denied, 200+i)}},
			},
		}}, extra{hooksPath + "validatingadmissionpolicybindings", &admissionv1.ValidatingAdmissionPolicyBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicyBinding"}, ObjectMeta: about,
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: about.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
		}})
	}
	return all
}

// A feature is what features uses and drops in each workspace.
type feature struct {
	name string
	all  []extra
}

func allFeatures() []feature {
	return []feature{
		{"a policy", policiesForConfigMaps()[:2]},
		{"a webhook", []extra{webhookForSecrets()}},
		{"a quota", []extra{{"/api/v1/namespaces/default/resourcequotas", &corev1.ResourceQuota{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ResourceQuota"}, ObjectMeta: metav1.ObjectMeta{Name: "bench"},
			Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/configmaps": resource.MustParse("10")}},
		}}}},
		{"a definition", []extra{{"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition(customGroup)}}},
	}
}

// features measures what remains of each feature in workspaces that have used and dropped it. The
// first uses also fill caches that all workspaces share, such as the environments of CEL.
func features(ctx context.Context, b *bench) error {
	return b.onKCP(ctx, func(kcp subject, s *server) error {
		defer s.stop()
		clients, err := child.Connect(ctx, s.user, b.plan.clients)
		if err != nil {
			return err
		}
		defer child.CloseAll(clients)
		tenants := make([]tenant, b.plan.featured)
		if _, err = spread(ctx, clients, len(tenants), func(ctx context.Context, c *client, i int) (err error) {
			tenants[i], err = s.newTenant(ctx, c, fmt.Sprintf("tenant-%d", i))
			return err
		}); err != nil {
			return err
		}
		first := min(10, len(tenants)/2)
		// Config maps alone come first: each feature is used with one.
		for _, f := range append([]feature{{name: "a config map"}}, allFeatures()...) {
			if err := (users{b, s, kcp.name(), clients}).remains(ctx, f, tenants[:first], tenants[first:]); err != nil {
				return err
			}
		}
		return nil
	})
}

// users use features of a server.
type users struct {
	*bench
	at      *server
	subject string
	clients []*client
}

// remains reports what is left of a feature in the first workspaces and in each of the others.
func (u users) remains(ctx context.Context, f feature, first, others []tenant) error {
	unused, err := u.atRest(ctx)
	if err != nil {
		return err
	}
	if err := u.useAndDrop(ctx, first, f); err != nil {
		return err
	}
	before, err := u.atRest(ctx)
	if err != nil {
		return err
	}
	if err := u.useAndDrop(ctx, others, f); err != nil {
		return err
	}
	after, err := u.atRest(ctx)
	if err != nil {
		return err
	}
	of := fmt.Sprintf("the first %d workspaces have used and dropped %s", len(first), f.name)
	u.report.add(u.subject, of, "more live heap", bytesUnit, before.liveHeap-unused.liveHeap)
	u.report.add(u.subject, of, "more metric series", plainCount, before.series-unused.series)
	of, n := fmt.Sprintf("%d further workspaces have used and dropped %s", len(others), f.name), float64(len(others))
	u.report.add(u.subject, of, "live heap each", bytesUnit, (after.liveHeap-before.liveHeap)/n)
	u.report.add(u.subject, of, "more goroutines", plainCount, after.goroutines-before.goroutines)
	u.report.add(u.subject, of, "more metric series", plainCount, after.series-before.series)
	return nil
}

// useAndDrop makes a feature and a config map in each workspace, and deletes both.
func (u users) useAndDrop(ctx context.Context, tenants []tenant, f feature) error {
	_, err := spread(ctx, u.clients, len(tenants), func(ctx context.Context, c *client, i int) error {
		if err := makeAll(ctx, c, tenants[i], f.all); err != nil {
			return err
		}
		if err := u.create(ctx, c, tenants[i].configMaps, "used"); err != nil {
			return err
		}
		if err := deleteAll(ctx, c, tenants[i], f.all); err != nil {
			return err
		}
		_, err := c.Call(ctx, http.MethodDelete, tenants[i].configMaps+"/used", jsonType, nil)
		return err
	})
	return err
}

// atRest measures the server some time after the last write, and after a garbage collection.
func (u users) atRest(ctx context.Context) (footprint, error) {
	if err := child.Pause(ctx, u.plan.settle); err != nil {
		return footprint{}, err
	}
	for _, config := range u.at.metrics {
		c, err := child.NewClient(config)
		if err != nil {
			return footprint{}, err
		}
		_, err = c.Call(ctx, http.MethodGet, "/debug/pprof/heap?gc=1", "*/*", nil)
		c.Close()
		if err != nil {
			return footprint{}, err
		}
	}
	return u.at.footprint(ctx)
}
