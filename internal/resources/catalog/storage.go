package catalog

// A Storage says where the objects of a resource are.
type Storage byte

const (
	// Stored objects are in the cluster that has the resource.
	Stored Storage = iota
	// Cached objects are those of another cluster. They can only be read.
	Cached
	// Remote objects are on another server, which gets all requests.
	Remote
)

// In returns the content for objects in a storage. Its discovery has only the verbs of that
// storage.
func (c *Content) In(s Storage) *Content {
	if s == Stored {
		return c
	}
	in := *c
	in.storage, in.stored = s, c
	in.rehash([]byte{byte(s)})
	return &in
}

// Storage returns where the objects of the content are.
func (c *Content) Storage() Storage { return c.storage }

// AsStored returns the content for objects in the cluster that has the resource.
func (c *Content) AsStored() *Content {
	if c.stored == nil {
		return c
	}
	return c.stored
}
