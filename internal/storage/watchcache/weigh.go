package watchcache

const (
	// valueWeight is the memory of a value without its text, and objectWeight that of an
	// object: a map with room for some members. A few bytes of JSON can take hundreds.
	valueWeight  = 32
	objectWeight = 350
	// manyTimes is the memory of an object per stored byte, if it is not weighed before.
	manyTimes = 20
	// typedTimes is the memory of an object of a native kind per stored byte.
	typedTimes = 4
)

// weigh estimates the bytes of memory of a decoded value.
func weigh(value any) int64 {
	switch v := value.(type) {
	case map[string]any:
		sum := int64(objectWeight)
		for name, member := range v {
			sum += int64(len(name)) + valueWeight + weigh(member)
		}
		return sum
	case []any:
		sum := int64(valueWeight)
		for _, item := range v {
			sum += weigh(item)
		}
		return sum
	case string:
		return valueWeight + int64(len(v))
	default:
		return valueWeight
	}
}
