package upstream

import (
	"strings"

	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/component-base/metrics"
)

// registerMetrics registers the libraries' metrics, which they do when a server installs its API. By
// then, another server of the process may already use some, which is a data race.
func registerMetrics() {
	routes.DefaultMetrics{}.Install(mux.NewPathRecorderMux("metrics"))
}

// boundMetrics limits the label values of the libraries' metrics to names that the server
// itself serves. Names that tenants choose are counted as "unexpected". Otherwise each resource,
// group and version of a tenant would add time series for the life of the process. The libraries
// read the limits when a metric is used for the first time.
//
// At the next minor version: look at the failures of TestBoundedMetrics and
// TestMetricsOfCustomResources in internal/server, which list new metrics and resources.
func boundMetrics() {
	values := map[string][]string{
		"group": {
			"", "admissionregistration.k8s.io", "apiextensions.k8s.io", "apis.kcp.io", "cache.kcp.io", "authentication.k8s.io", "authorization.k8s.io", "certificates.k8s.io",
			"coordination.k8s.io", "core.kcp.io", "events.k8s.io", "rbac.authorization.k8s.io", "tenancy.kcp.io", "topology.kcp.io",
		},
		"version":     {"", "v1", "v1alpha1", "v1alpha2", "v1beta1"},
		"subresource": {"", "approval", "finalize", "scale", "status", "token"},
		"resource": {
			"", "apibindings.apis.kcp.io", "apiconversions.apis.kcp.io", "apiexportendpointslices.apis.kcp.io", "apiexportrollouts.apis.kcp.io", "apiexports.apis.kcp.io", "apiresourceschemas.apis.kcp.io",
			"certificatesigningrequests.certificates.k8s.io", "clustercachedresourceendpointslices.cache.kcp.io", "clustercachedresources.cache.kcp.io", "clusterrolebindings.rbac.authorization.k8s.io", "clusterroles.rbac.authorization.k8s.io",
			"configmaps", "customresourcedefinitions.apiextensions.k8s.io", "events", "events.events.k8s.io", "leases.coordination.k8s.io",
			"localsubjectaccessreviews.authorization.k8s.io", "logicalclusters.core.kcp.io", "mutatingadmissionpolicies.admissionregistration.k8s.io",
			"mutatingadmissionpolicybindings.admissionregistration.k8s.io", "mutatingwebhookconfigurations.admissionregistration.k8s.io",
			"namespaces", "partitions.topology.kcp.io", "partitionsets.topology.kcp.io", "resourcequotas", "rolebindings.rbac.authorization.k8s.io", "roles.rbac.authorization.k8s.io", "secrets",
			"selfsubjectaccessreviews.authorization.k8s.io", "selfsubjectreviews.authentication.k8s.io", "selfsubjectrulesreviews.authorization.k8s.io",
			"serviceaccounts", "shards.core.kcp.io", "subjectaccessreviews.authorization.k8s.io", "tokenreviews.authentication.k8s.io",
			"validatingadmissionpolicies.admissionregistration.k8s.io", "validatingadmissionpolicybindings.admissionregistration.k8s.io",
			"validatingwebhookconfigurations.admissionregistration.k8s.io", "workspaceauthenticationconfigurations.tenancy.kcp.io", "workspaces.tenancy.kcp.io", "workspacetypes.tenancy.kcp.io",
		},
		// All definitions are counted together.
		"crd_name": {""}, "from_version": {""}, "to_version": {""},
		// So are all webhooks and policies.
		"name": {""}, "policy": {""}, "policy_binding": {""},
	}
	for _, qualified := range values["resource"] { // some have the group in a label of its own
		plain, _, _ := strings.Cut(qualified, ".")
		values["resource"] = append(values["resource"], plain)
	}
	allowed := map[string]string{}
	for label, names := range BoundedMetrics() {
		for _, name := range names {
			allowed[name+","+label] = strings.Join(values[label], ",")
		}
	}
	allowed["apiserver_authentication_jwt_authenticator_latency_seconds,jwt_issuer_hash"] = "" // tenants choose issuers
	metrics.SetLabelAllowList(allowed)
}

// BoundedMetrics returns the names of the libraries' metrics by label, for the labels whose
// values tenants choose.
func BoundedMetrics() map[string][]string {
	all := map[string][]string{}
	for labels, names := range map[string][]string{
		"group,version,resource,subresource": {
			"apiserver_longrunning_requests", "apiserver_request_aborts_total", "apiserver_request_duration_seconds",
			"apiserver_request_sli_duration_seconds", "apiserver_request_slo_duration_seconds", "apiserver_request_terminations_total",
			"apiserver_request_total", "apiserver_requested_deprecated_apis", "apiserver_response_sizes",
		},
		"group,version,resource": {
			"apiserver_peer_proxy_errors_total", "apiserver_rerouted_request_total", "apiserver_watch_events_sizes", "apiserver_watch_events_total",
			"apiserver_watch_list_duration_seconds",
		},
		"group,version":              {"apiextensions_openapi_v3_regeneration_count"},
		"group,resource,subresource": {"apiserver_selfrequest_total"},
		"group,resource": {
			"apiserver_cache_list_fetched_objects_total", "apiserver_cache_list_returned_objects_total", "apiserver_cache_list_total",
			"apiserver_init_events_total", "apiserver_request_body_size_bytes", "apiserver_resource_objects", "apiserver_resource_size_estimate_bytes",
			"apiserver_storage_consistency_checks_total", "apiserver_storage_decode_errors_total", "apiserver_storage_events_received_total",
			"apiserver_storage_list_evaluated_objects_total", "apiserver_storage_list_fetched_objects_total", "apiserver_storage_list_returned_objects_total",
			"apiserver_storage_list_total", "apiserver_terminated_watchers_total", "apiserver_watch_cache_consistent_read_total",
			"apiserver_watch_cache_events_dispatched_total", "apiserver_watch_cache_events_received_total", "apiserver_watch_cache_initializations_total",
			"apiserver_watch_cache_read_wait_seconds", "apiserver_watch_cache_resource_version", "etcd_bookmark_counts", "etcd_bookmark_total",
			"etcd_request_duration_seconds", "etcd_request_errors_total", "etcd_requests_total",
			"watch_cache_capacity", "watch_cache_capacity_decrease_total", "watch_cache_capacity_increase_total",
		},
		"resource":                         {"apiserver_storage_objects", "apiserver_storage_transformation_operations_total"},
		"subresource":                      {"apiserver_websocket_streaming_requests_total"},
		"crd_name,from_version,to_version": {"apiserver_crd_conversion_webhook_duration_seconds"},
		"name": {
			"apiserver_admission_match_condition_evaluation_errors_total", "apiserver_admission_match_condition_evaluation_seconds",
			"apiserver_admission_match_condition_exclusions_total", "apiserver_admission_webhook_admission_duration_seconds",
			"apiserver_admission_webhook_fail_open_count", "apiserver_admission_webhook_rejection_count", "apiserver_admission_webhook_request_total",
		},
		"policy,policy_binding": {
			"apiserver_mutating_admission_policy_check_duration_seconds", "apiserver_mutating_admission_policy_check_total",
			"apiserver_validating_admission_policy_check_duration_seconds", "apiserver_validating_admission_policy_check_total",
		},
	} {
		for label := range strings.SplitSeq(labels, ",") {
			all[label] = append(all[label], names...)
		}
	}
	return all
}
