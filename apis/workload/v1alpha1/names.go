package v1alpha1

import conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"

const (
	// Export is the name of the APIExport of SyncTargets and Locations in the root
	// workspace.
	Export = "workload.kcp.io"

	// KubernetesExport is the name of the APIExport in a compute workspace that consumers
	// bind. Its resources run on the physical clusters of the workspace.
	KubernetesExport = "kubernetes"

	// PlacedFinalizer is on every workload that has an Assignment. It is removed when the
	// workload is removed from all targets.
	PlacedFinalizer = "workload.kcp.io/placed"

	// DisconnectFinalizer is on every SyncTarget. It is removed when no workload has the
	// target any more.
	DisconnectFinalizer = "workload.kcp.io/disconnect"

	// InUseFinalizer is on every ResourceProfile in effect until no object of its resource is placed, and on
	// the export of a compute workspace with SyncTargets until the physical clusters have removed the copies
	// of all workloads.
	InUseFinalizer = "workload.kcp.io/in-use"

	// OrphanAnnotation is on a SyncTarget whose objects stay in the physical cluster when it is
	// deleted: with the value "true" they are left there, and no longer belong to any workspace.
	OrphanAnnotation = "workload.kcp.io/orphan"

	// Orphaned is the reason of a part that the target leaves in the physical cluster instead of
	// removing it.
	Orphaned = "Orphaned"

	// DeletedReason is the reason of a part of a workload that was deleted.
	DeletedReason = "Deleted"

	// Full is the reason in the report of a target that does not create an object, because it has too many of the
	// tenant.
	Full = "Full"

	// NotServed is the reason in the report of a target that does not serve the kind of an object.
	NotServed = "NotServed"

	// KubeconfigKey is the key of the kubeconfig in the Secret of a SyncTarget.
	KubeconfigKey = "kubeconfig"

	// TargetsNamespace is the namespace of a compute workspace for its SyncTargets: it has the
	// Secrets with kubeconfigs, and the Leases of agents.
	TargetsNamespace = "kcp-synctargets"

	// BeatAnnotation is on the Lease of an agent. Its value is JSON: what the agent reported
	// with its last heartbeat.
	BeatAnnotation = "workload.kcp.io/heartbeat"

	// OwnerLabel is on all objects that the agent creates in a physical cluster. Its value is
	// the key of the target.
	OwnerLabel = "internal.workload.kcp.io/cluster"

	// LocatorAnnotation is on the namespaces and objects that the agent creates in a physical
	// cluster. Its value is JSON: the logical cluster and the namespace that the object is
	// from, and the key of the target.
	LocatorAnnotation = "kcp.io/namespace-locator"

	// FencingAnnotation is on the copies of workloads that the agent stops without contact to the
	// server. Its value is "Lease".
	FencingAnnotation = "internal.workload.kcp.io/fencing"

	// AppliedAnnotation is on the objects that the agent creates in a physical cluster. Its
	// value is a hash of the fields that the agent applied.
	AppliedAnnotation = "internal.workload.kcp.io/applied"
)

// CertificateSubresource is the subresource that the bootstrap of an agent may create:
// synctargets/certificate.
const CertificateSubresource = "certificate"

// SyncerPath returns the path of the view of the agent of a SyncTarget. cluster is the logical cluster
// of the SyncTarget.
func SyncerPath(cluster, target, uid string) string {
	return "/services/syncer/" + cluster + "/" + target + "/" + uid
}

// InUse is a condition of ResourceProfiles. It is True while a profile that is being deleted is in effect,
// because objects of its resource are placed.
const InUse conditions.Type = "InUse"

// StillPlaced is the reason of [InUse].
const StillPlaced = "StillPlaced"

// Conditions of SyncTargets.
const (
	// HeartbeatHealthy is True while the agent of a SyncTarget reports in time.
	HeartbeatHealthy conditions.Type = "HeartbeatHealthy"
	// APIServerHealthy is True while the physical cluster answers the agent.
	APIServerHealthy conditions.Type = "APIServerHealthy"
	// SyncerAuthorized is True if the agent has the permissions that it needs in the
	// physical cluster.
	SyncerAuthorized conditions.Type = "SyncerAuthorized"
	// Fenced is True while an operator says that nothing runs in a physical cluster that does not
	// answer, and after its return until it has removed what began elsewhere.
	Fenced conditions.Type = "Fenced"
	// EvictionsHeld is True while a physical cluster does not answer and no workload leaves it,
	// because most others do not answer either.
	EvictionsHeld conditions.Type = "EvictionsHeld"
	// CopiesRemoved is a condition of SyncTargets and of the export of a compute workspace. It is False while
	// the workspace or the export is being deleted and physical clusters have copies of workloads.
	CopiesRemoved conditions.Type = "CopiesRemoved"
)

// Reasons of conditions of SyncTargets that are not True.
const (
	// KubeconfigInvalid means that the Secret with the kubeconfig is missing or that its
	// content cannot be used.
	KubeconfigInvalid = "KubeconfigInvalid"
	// Unreachable means that the physical cluster does not answer.
	Unreachable = "Unreachable"
	// ServerBusy means that the server makes too many requests at that time, and cannot tell whether the
	// physical cluster answers.
	ServerBusy = "ServerBusy"
	// Unauthorized means that the physical cluster refuses the credentials, or that they
	// lack permissions.
	Unauthorized = "Unauthorized"
	// AnotherCluster means that the physical cluster is not the one that was registered.
	AnotherCluster = "AnotherCluster"
	// AgentMissing means that no agent has connected yet.
	AgentMissing = "AgentMissing"
	// TooMany means that the workspace has too many SyncTargets.
	TooMany = "TooManyTargets"
	// TooOld means that the version of the physical cluster is not supported.
	TooOld = "TooOld"
	// AgentLost means that the agent does not report, or cannot work, although the physical cluster
	// is alive.
	AgentLost = "AgentLost"
	// DownByProbes means that the physical cluster does not answer, and that two outside probes say
	// that it is down.
	DownByProbes = "DownByProbes"
)

// Reasons of the condition CopiesRemoved.
const (
	// RemovingCopies means that the physical cluster removes the copies.
	RemovingCopies = "RemovingCopies"
	// CopiesRemain means that the physical cluster has not removed the copies in time, or is fenced.
	CopiesRemain = "CopiesRemain"
)

// RefusedRemoval is the reason in a TargetStatus if the physical cluster refuses to delete the copy of
// the workload, or one of an object that it refers to.
const RefusedRemoval = "RefusedRemoval"

// ComputeDeleted is the reason of a workload whose compute workspace, or its export, is being deleted.
const ComputeDeleted = "ComputeWorkspaceDeleted"

// Reasons of the conditions Fenced and EvictionsHeld.
const (
	// ByOperator means that an operator fenced the physical cluster.
	ByOperator = "ByOperator"
	// CleaningUp means that the physical cluster is back, and removes what began elsewhere.
	CleaningUp = "CleaningUp"
	// NotFenced means that no operator has fenced the physical cluster.
	NotFenced = "NotFenced"
	// MostUnreachable means that most physical clusters do not answer.
	MostUnreachable = "MostUnreachable"
	// FewUnreachable means that most physical clusters answer.
	FewUnreachable = "FewUnreachable"
)

// Taints of SyncTargets.
const (
	// UnreachableTaint is set by the server on targets whose agent does not report.
	UnreachableTaint = "workload.kcp.io/unreachable"
	// DrainTaint is set by "kubectl kcp workload drain".
	DrainTaint = "workload.kcp.io/drain"
)
