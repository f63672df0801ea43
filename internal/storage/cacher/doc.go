// Package cacher is Kubernetes' watch cache, of one resource in all clusters. It hides how a cache is
// filled: in pages of limited bytes, again when values can be decrypted that could not be before, and
// from the revision at which the last process ended its watches.
package cacher
