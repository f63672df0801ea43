package main

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/spf13/pflag"
)

// A refusal is the reason why flags of the existing kcp or of kube-apiserver are unsupported.
type refusal struct {
	flags []string // names; * stands for any part of one
	why   string
}

// refusals returns the unsupported flags. The first match counts.
func refusals() []refusal {
	return append(operationRefusals(), []refusal{
		{[]string{"shard-name", "shard-base-url", "shard-virtual-workspace-*", "shard-client-*", "shard-kubeconfig-file", "root-shard-kubeconfig-file"},
			"there is one shard, root; only --shard-external-url says how clients reach it"},
		{[]string{"cache-*"}, "there is no cache server, as there is one shard"},
		{[]string{"*logical-cluster-admin-kubeconfig"}, "there are no other shards to talk to"},
		{[]string{"run-controllers"}, "controllers always run, in one server of those on an etcd"},
		{[]string{"enable-leader-election", "leader-election-*"}, "servers on one etcd always agree on who runs the controllers"},
		{[]string{"run-virtual-workspaces", "virtual-workspace*"}, "this process serves all virtual workspaces itself"},
		{[]string{"batteries-included"}, "the administrators and workspaces are always there, and other batteries are not served"},
		{[]string{"logical-cluster-object-count-scan-interval"}, "objects are counted as they change, and nothing is scanned"},
		{[]string{"root-identities-file"}, "the server makes the identities of the exports in root"},
		{[]string{"miniproxy-mapping-file"}, "there are no shards to route to"},
		{[]string{"authorization-mode", "authorization-policy-file"}, "--authorization-order says who is asked, or a file by --authorization-config"},
		{[]string{"etcd-servers-overrides", "storage-backend", "storage-media-type", "etcd-count-metric-*", "etcd-db-metric-*", "etcd-healthcheck-timeout",
			"etcd-readycheck-timeout", "lease-reuse-duration-seconds"}, "everything is in the one etcd of --etcd-servers, in the form that the server chooses"},
		{[]string{"enable-bootstrap-token-auth"}, "no nodes join a logical cluster"},
		{[]string{"service-account-private-key-file"}, "the key that signs is that of --service-account-signing-key-file"},
		{[]string{"service-account-signing-endpoint"}, "tokens are signed with the key of --service-account-signing-key-file"},
		{[]string{"runtime-config"}, "all API versions that are generally available are served, and no others"},
		{[]string{"enable-priority-and-fairness"}, "each logical cluster always has its share of the requests"},
		{[]string{"egress-selector-config-file"}, "the server connects directly"},
		{[]string{"proxy-client-*", "enable-aggregator-routing", "aggregator-*"}, "there are no aggregated API servers"},
		{[]string{"peer-ca-file"}, "servers on one etcd recognize each other by a key in etcd"},
		{[]string{"kubelet-*", "allow-privileged", "service-cluster-ip-range", "service-node-port-range", "kubernetes-service-node-port", "cloud-*",
			"endpoint-reconciler-type", "apiserver-count", "max-connection-bytes-per-sec", "*-toleration-seconds"},
			"a logical cluster has no pods, nodes and services"},
	}...)
}

// explain adds advice to an error of the flag parser.
func explain(f *pflag.FlagSet, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		name := unknown.GetSpecifiedName()
		for _, r := range refusals() {
			if r.about(name) {
				return fmt.Errorf("--%s is not served: %s; leave it out", name, r.why)
			}
		}
		if near := nearest(f, name); near != "" {
			return fmt.Errorf("%w; did you mean --%s? See which there are: %s start --help", err, near, self())
		}
		return fmt.Errorf("%w; see which there are: %s start --help", err, self())
	}
	return fmt.Errorf("%w; see %s start --help", err, self())
}

func (r refusal) about(name string) bool {
	for _, pattern := range r.flags {
		if ok, err := path.Match(pattern, name); ok && err == nil {
			return true
		}
	}
	return false
}

// beginning is the minimum length of a prefix that identifies a flag.
const beginning = 4

// nearest returns the flag with the most similar name, or nothing if none is similar. A
// prefix is similar.
func nearest(f *pflag.FlagSet, name string) string {
	best, least := "", len(name)/3+1
	f.VisitAll(func(flag *pflag.Flag) {
		d := distance(name, flag.Name)
		if strings.HasPrefix(flag.Name, name+"-") || len(name) >= beginning && strings.HasPrefix(flag.Name, name) {
			d = min(d, least-1)
		}
		if d < least {
			best, least = flag.Name, d
		}
	})
	return best
}

// distance returns the edit distance of a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
