package bounds

import (
	"crypto/rsa"
	"fmt"
)

// Modulus is the limit in bits of the RSA keys that clients choose. The time of a verification grows with the
// square of the modulus, and nothing can end it: a key that fits into an object would take a processor for
// hours. Go's TLS has the same limit for the certificates of peers.
const Modulus = 8192

// PublicKey returns an error for an RSA key with more than a number of bits.
func PublicKey(key any, bits int) error {
	if k, ok := key.(*rsa.PublicKey); ok && k.N.BitLen() > bits {
		return fmt.Errorf("the RSA key has %d bits, and the limit is %d", k.N.BitLen(), bits)
	}
	return nil
}
