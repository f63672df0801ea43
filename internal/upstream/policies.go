package upstream

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"

	_ "unsafe" // for go:linkname
)

// CompileValidating compiles the expressions of a policy. The library compiles policies only
// in a plugin that has informers and several goroutines, which would be one plugin for each
// logical cluster with a policy. It exports the dispatcher that takes compiled policies.
//
// At the next minor version: look at compilePolicy in plugin.go of the package.
//
//go:linkname CompileValidating k8s.io/apiserver/pkg/admission/plugin/policy/validating.compilePolicy
func CompileValidating(*admissionregistrationv1.ValidatingAdmissionPolicy) validating.Validator

// CompileMutating is [CompileValidating] for policies that change objects.
//
// At the next minor version: look at compilePolicy in compilation.go of the package.
//
//go:linkname CompileMutating k8s.io/apiserver/pkg/admission/plugin/policy/mutating.compilePolicy
func CompileMutating(*admissionregistrationv1.MutatingAdmissionPolicy) mutating.PolicyEvaluator
