package server

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/unforked/kcp/internal/admit"
)

// Plugins says which admission rules are on, by the names of plugins that a
// kube-apiserver and the existing kcp have.
type Plugins struct {
	// Enable names rules that must be on. All that there are always are, unless
	// Disable names them.
	Enable []string
	// Disable names rules that are off: further ones, of a program with the server in
	// it, and none of those that keep logical clusters whole.
	Disable []string
}

// elsewhere are admission plugins that guard what no logical cluster has: pods, nodes,
// services and volumes. Whether they are on makes no difference.
func elsewhere() sets.Set[string] {
	return sets.New("AlwaysPullImages", "LimitPodHardAntiAffinityTopology", "DefaultTolerationSeconds", "ExtendedResourceToleration",
		"ImagePolicyWebhook", "LimitRanger", "NodeRestriction", "TaintNodesByCondition", "PodNodeSelector", "PodTolerationRestriction",
		"PodTopologyLabels", "Priority", "RuntimeClass", "PodSecurity", "PersistentVolumeClaimResize", "DefaultStorageClass",
		"StorageObjectInUseProtection", "DefaultIngressClass", "DenyServiceExternalIPs", "JobValidation", "NodeDeclaredFeatureValidator",
		"PodGroupWorkloadExists", "PodGroupProtection", "ServiceAccount", "NamespaceLifecycle")
}

// existing are further plugins of the existing kcp.
func existing() sets.Set[string] {
	return sets.New("WorkspaceNamespaceLifecycle", "tenancy.kcp.io/Workspace", "tenancy.kcp.io/WorkspaceType", "tenancy.kcp.io/WorkspaceTypeExists",
		"tenancy.kcp.io/LogicalClusterDeletionFinalizer", "core.kcp.io/LogicalCluster", "core.kcp.io/LogicalClusterObjectCountLimit",
		"tenancy.kcp.io/Shard", "tenancy.kcp.io/APIResourceSchema", "apis.kcp.io/APIExport", "apis.kcp.io/APIBinding",
		"apis.kcp.io/APIBindingDeletionFinalizer", "apis.kcp.io/APIExportEndpointSlice", "apis.kcp.io/ClusterCachedResource",
		"apis.kcp.io/PermissionClaims", "apis.kcp.io/ReservedCRDAnnotations", "kcp.io/ReservedCRDGroups", "apis.kcp.io/ReservedNames",
		"kcp.io/PathAnnotation", "apis.kcp.io/MutatingWebhook", "apis.kcp.io/ValidatingWebhook", "KCPMutatingAdmissionPolicy",
		"KCPValidatingAdmissionPolicy", "KCPKubeResourceQuota", "apis.kcp.io/ReservedMetadata", "apis.kcp.io/CRDNoOverlappingGVR")
}

// check finds what cannot be done: own are the rules of the server, further those
// that were added.
func (p Plugins) check(own, further admit.Rules) error {
	known := existing().Insert(options.AllOrderedPlugins...)
	for flag, names := range map[string][]string{"--enable-admission-plugins": p.Enable, "--disable-admission-plugins": p.Disable} {
		for _, name := range names {
			if !known.Has(name) && !has(own, name) && !has(further, name) {
				return fmt.Errorf("%s: there is no admission plugin %q; check its spelling", flag, name)
			}
		}
	}
	for _, name := range p.Enable {
		switch {
		case slices.Contains(p.Disable, name):
			return fmt.Errorf("--enable-admission-plugins and --disable-admission-plugins both name %q; leave it out of one", name)
		case !has(own, name) && !has(further, name) && !elsewhere().Has(name):
			return fmt.Errorf("--enable-admission-plugins: %q is not served yet; leave it out. On are %s", name, strings.Join(names(append(slices.Clip(own), further...)), ", "))
		}
	}
	for _, name := range p.Disable {
		if has(own, name) {
			return fmt.Errorf("--disable-admission-plugins: %q keeps logical clusters whole and cannot be switched off; leave it out", name)
		}
	}
	return nil
}

func has(rules admit.Rules, name string) bool { return slices.Contains(names(rules), name) }

func names(rules admit.Rules) []string {
	all := make([]string, len(rules))
	for i, r := range rules {
		all[i] = r.Name
	}
	return all
}

// without returns the rules that are not disabled.
func (p Plugins) without(rules admit.Rules) admit.Rules {
	return slices.DeleteFunc(slices.Clone(rules), func(r admit.Rule) bool { return slices.Contains(p.Disable, r.Name) })
}
