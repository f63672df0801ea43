// Package apis is the root of the API types that the server serves beside
// those of Kubernetes. Each group and version has a package below it; the
// definitions made from them are in package crds.
//
// The Go types are the source. After a change to one of them run
//
//	go generate ./apis/...
package apis

//go:generate go tool -modfile=gen/go.mod controller-gen object crd paths=./... output:crd:dir=crds
