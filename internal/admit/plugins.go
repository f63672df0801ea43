package admit

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// Plugins enables and disables admission rules. It accepts the names of the plugins of
// kube-apiserver and of the existing kcp.
type Plugins struct {
	// Enable names rules that must be enabled. All rules are, unless Disable names them.
	Enable []string
	// Disable names rules to disable. The built-in rules cannot be disabled, only those of
	// an embedding program.
	Disable []string
}

// elsewhere returns the admission plugins of kube-apiserver that have no effect here. They
// guard pods, nodes, services and volumes, or are built in differently.
func elsewhere() sets.Set[string] {
	return sets.New("AlwaysPullImages", "LimitPodHardAntiAffinityTopology", "DefaultTolerationSeconds", "ExtendedResourceToleration",
		"ImagePolicyWebhook", "LimitRanger", "NodeRestriction", "TaintNodesByCondition", "PodNodeSelector", "PodTolerationRestriction",
		"PodTopologyLabels", "Priority", "RuntimeClass", "PodSecurity", "PersistentVolumeClaimResize", "DefaultStorageClass",
		"StorageObjectInUseProtection", "DefaultIngressClass", "DenyServiceExternalIPs", "JobValidation", "NodeDeclaredFeatureValidator",
		"PodGroupWorkloadExists", "PodGroupProtection", "ServiceAccount", "NamespaceLifecycle",
		"ResourceQuota")
}

// inForce returns the admission plugins of the existing kcp, and those of kube-apiserver for webhooks and policies, that
// are always in force here, most of them in rules with other names.
func inForce() sets.Set[string] {
	return sets.New("MutatingAdmissionWebhook", "ValidatingAdmissionWebhook", "MutatingAdmissionPolicy", "ValidatingAdmissionPolicy",
		"WorkspaceNamespaceLifecycle", "tenancy.kcp.io/Workspace", "tenancy.kcp.io/WorkspaceType", "tenancy.kcp.io/WorkspaceTypeExists",
		"tenancy.kcp.io/LogicalClusterDeletionFinalizer", "core.kcp.io/LogicalCluster", "core.kcp.io/LogicalClusterObjectCountLimit",
		"tenancy.kcp.io/Shard", "tenancy.kcp.io/APIResourceSchema", "apis.kcp.io/APIExport", "apis.kcp.io/APIBinding",
		"apis.kcp.io/APIBindingDeletionFinalizer", "apis.kcp.io/APIExportEndpointSlice", "apis.kcp.io/ClusterCachedResource",
		"apis.kcp.io/PermissionClaims", "apis.kcp.io/ReservedCRDAnnotations", "kcp.io/ReservedCRDGroups", "apis.kcp.io/ReservedNames",
		"kcp.io/PathAnnotation", "apis.kcp.io/MutatingWebhook", "apis.kcp.io/ValidatingWebhook", "KCPMutatingAdmissionPolicy",
		"KCPValidatingAdmissionPolicy", "KCPKubeResourceQuota")
}

// optional returns the admission plugins of the existing kcp that are off by default there, and that this server lacks.
func optional() sets.Set[string] {
	return sets.New("apis.kcp.io/ReservedMetadata", "apis.kcp.io/CRDNoOverlappingGVR")
}

// Check returns an error for names that are unknown, contradictory or cannot be enabled or
// disabled. own are the built-in rules, further those of the embedding program.
func (p Plugins) Check(own, further Rules) error {
	known := inForce().Union(optional()).Insert(options.AllOrderedPlugins...)
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
		case !has(own, name) && !has(further, name) && !elsewhere().Has(name) && !inForce().Has(name):
			return fmt.Errorf("--enable-admission-plugins: %q is not served yet; leave it out. Enabled are %s", name, strings.Join(names(append(slices.Clip(own), further...)), ", "))
		}
	}
	for _, name := range p.Disable {
		if has(own, name) || inForce().Has(name) && !has(further, name) {
			return fmt.Errorf("--disable-admission-plugins: %q is always in force and cannot be disabled; leave it out", name)
		}
	}
	return nil
}

func has(rules Rules, name string) bool { return slices.Contains(names(rules), name) }

func names(rules Rules) []string {
	all := make([]string, len(rules))
	for i, r := range rules {
		all[i] = r.Name
	}
	return all
}

// Without returns the rules that are not disabled.
func (p Plugins) Without(rules Rules) Rules {
	return slices.DeleteFunc(slices.Clone(rules), func(r Rule) bool { return slices.Contains(p.Disable, r.Name) })
}
