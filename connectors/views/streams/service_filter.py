"""Makes Kafka Streams skip the messages of services that a view does not include.

Kafka Streams skips a message whose time is negative, and counts its offset as processed. So a `TimestampExtractor`,
which sees the headers of a message, can make Kafka Streams skip it. The extractor is made of Java's own functions
(`java.lang.invoke`), so Java evaluates it without calling Python. Each call of Python would have to wait for Python's
other threads.
"""

from typing import Any, Final

import jpype

from changelog.envelope.service_choice import ServiceChoice

HEADER: Final = "serviceName"
"""The header of a message that names the service. A message without this header counts as one by the service ''."""

_SKIPPED: Final = -1


def times_of_included(choice: ServiceChoice) -> Any:
    """Returns the `TimestampExtractor` that gives a message its own time if `choice` includes the message's service,
    and otherwise a negative time. The virtual machine must run (`java.start`).
    """
    functions = _Functions()
    record, number = jpype.JClass("org.apache.kafka.clients.consumer.ConsumerRecord"), jpype.java.lang.Long.TYPE
    own_time = functions.method(record, "timestamp", number)
    skipped = functions.constant(number, jpype.JLong(_SKIPPED), record)
    branches = (own_time, skipped) if choice.is_of_kept else (skipped, own_time)
    rule = functions.handles.guardWithTest(_is_named(functions, record, choice.names), *branches)
    rule = functions.handles.dropArguments(rule, 1, functions.classes(number))  # it ignores its second argument
    extractor = jpype.JClass("org.apache.kafka.streams.processor.TimestampExtractor")
    return functions.proxies.asInterfaceInstance(extractor.class_, rule)


def _is_named(functions: "_Functions", record: Any, names: tuple[str, ...]) -> Any:
    """Returns the function that takes a message, and returns whether the service in its header is one of `names`."""
    headers = jpype.JClass("org.apache.kafka.common.header.Headers")
    header, text = jpype.JClass("org.apache.kafka.common.header.Header"), jpype.java.lang.String
    bytes_of = jpype.JArray(jpype.JByte)
    buffer, truth, anything = jpype.JClass("java.nio.ByteBuffer"), jpype.java.lang.Boolean.TYPE, jpype.java.lang.Object
    known_names = jpype.JClass("java.util.HashSet")()
    for name in names:
        known_names.add(buffer.wrap(bytes_of(name.encode())))
    has_name = functions.chain(
        functions.method(header, "value", bytes_of.class_),
        functions.static(buffer, "wrap", buffer.class_, bytes_of.class_).asType(
            functions.type(anything.class_, bytes_of.class_)
        ),
        functions.method(jpype.JClass("java.util.Set"), "contains", truth, anything.class_).bindTo(known_names),
    )
    has_header = functions.static(jpype.JClass("java.util.Objects"), "nonNull", truth, anything.class_)
    is_named = functions.handles.guardWithTest(
        has_header.asType(functions.type(truth, header.class_)),
        has_name,
        functions.constant(truth, jpype.JBoolean("" in names), header),
    )
    last_header = functions.method(headers, "lastHeader", header.class_, text.class_)
    service = functions.handles.insertArguments(last_header, 1, jpype.JArray(anything)([text(HEADER)]))
    return functions.chain(functions.method(record, "headers", headers.class_), service, is_named)


class _Functions:
    """Looks up and combines functions of Java (`MethodHandle`)."""

    def __init__(self) -> None:
        invoke = jpype.JPackage("java").lang.invoke
        self.handles, self.proxies, self._types = invoke.MethodHandles, invoke.MethodHandleProxies, invoke.MethodType
        self._lookup = invoke.MethodHandles.publicLookup()

    def classes(self, *classes: Any) -> Any:
        return jpype.JArray(jpype.java.lang.Class)(list(classes))

    def type(self, result: Any, *arguments: Any) -> Any:
        return self._types.methodType(result, self.classes(*arguments))

    def method(self, owner: Any, name: str, result: Any, *arguments: Any) -> Any:
        """Returns a method of a class as a function, whose first argument is the object."""
        return self._lookup.findVirtual(owner.class_, name, self.type(result, *arguments))

    def static(self, owner: Any, name: str, result: Any, *arguments: Any) -> Any:
        return self._lookup.findStatic(owner.class_, name, self.type(result, *arguments))

    def constant(self, result: Any, value: Any, argument: Any) -> Any:
        """Returns the function that returns `value` for each `argument`."""
        return self.handles.dropArguments(self.handles.constant(result, value), 0, self.classes(argument.class_))

    def chain(self, *functions: Any) -> Any:
        """Returns the function that calls the first function, and then each further function with the result of the one
        before it.
        """
        chain = functions[0]
        for function in functions[1:]:
            chain = self.handles.filterReturnValue(chain, function)
        return chain
